/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The .npy format: "\x93NUMPY", two version bytes, the length of the header (2 bytes little endian
 * in version 1, 4 later), the header as a Python literal
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 * padded with blanks, then the elements. Nothing is believed before it is checked: the header's
 * length against the file, the shape against the bytes that are left; memory for the elements is
 * taken only after both agree exactly.
 */
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are copied as they lie in the file, which is little endian"
#endif

enum {
    MAGIC_BYTES = 6,
    PREFIX_MAX = 12,          /* magic, version, 4 bytes of length */
    HEADER_MAX = 1024 * 1024, /* far above what eight dimensions need, far below what hurts */
    DATA_ALIGNMENT = 64,
};

static const struct {
    const char *name, *descr;
    size_t size;
} types[] = {
    [NPY_F32] = {"float32", "<f4", 4}, [NPY_F16] = {"float16", "<f2", 2},
    [NPY_U16] = {"uint16", "<u2", 2},  [NPY_BOOL] = {"bool", "|b1", 1},
    [NPY_U8] = {"uint8", "|u1", 1},
};
enum { N_TYPES = sizeof types / sizeof *types };

size_t npy_type_size(npy_type type) { return types[type].size; }
const char *npy_type_name(npy_type type) { return types[type].name; }

/* ------------------------------------------------------------------ the header's literal */

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_blanks(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static int take(cursor *c, char wanted) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != wanted) return 0;
    c->at++;
    return 1;
}

/* A name such as True; it must not run on into a longer one. */
static int take_name(cursor *c, const char *name) {
    size_t length = strlen(name);
    skip_blanks(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, name, length) != 0) return 0;
    c->at += length;
    return 1;
}

/* A string without escapes, printable ASCII only; what is longer than `size` - 1 is refused like
 * any other malformed text. */
static int take_string(cursor *c, char *buffer, size_t size) {
    skip_blanks(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return 0;
    char quote = *c->at++;
    size_t length = 0;
    while (c->at < c->end && *c->at != quote) {
        if (*c->at < ' ' || *c->at > '~' || *c->at == '\\' || length + 1 >= size) return 0;
        buffer[length++] = *c->at++;
    }
    if (c->at == c->end) return 0;
    c->at++;
    buffer[length] = 0;
    return 1;
}

static int take_dimension(cursor *c, int64_t *value, char *error, size_t error_size) {
    skip_blanks(c);
    if (c->at < c->end && *c->at == '-')
        return text_error(error, error_size, "shape: a dimension is negative");
    if (c->at == c->end || *c->at < '0' || *c->at > '9')
        return text_error(error, error_size, "shape: not a tuple of integers");
    int64_t result = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(result, 10, &result) ||
            __builtin_add_overflow(result, *c->at - '0', &result))
            return text_error(error, error_size, "shape: a dimension exceeds 2^63 - 1");
    if (c->at < c->end && *c->at == 'L') c->at++; /* as Python 2 wrote them */
    *value = result;
    return 0;
}

static int take_shape(cursor *c, npy_array *array, char *error, size_t error_size) {
    if (!take(c, '(')) return text_error(error, error_size, "shape: not a tuple of integers");
    array->n_dims = 0;
    int comma = 1;
    while (!take(c, ')')) {
        if (!comma) return text_error(error, error_size, "shape: not a tuple of integers");
        if (array->n_dims == NPY_MAX_DIMS)
            return text_error(error, error_size, "shape: more than %d dimensions", NPY_MAX_DIMS);
        if (take_dimension(c, &array->shape[array->n_dims], error, error_size) != 0) return -1;
        array->n_dims++;
        comma = take(c, ',');
    }
    /* (3) is the number 3 in Python, not a tuple. */
    if (array->n_dims == 1 && !comma)
        return text_error(error, error_size, "shape: not a tuple of integers");
    return 0;
}

static int set_type(npy_array *array, const char *descr, char *error, size_t error_size) {
    for (int i = 0; i < N_TYPES; i++) {
        int single = types[i].size == 1; /* byte order means nothing there */
        if (strcmp(descr + (single && *descr == '<'), types[i].descr + (single && *descr == '<')) ==
            0) {
            array->type = (npy_type)i;
            return 0;
        }
    }
    if (*descr == '>')
        return text_error(error, error_size, "descr: '%s' is big endian; save it as little endian",
                          descr);
    return text_error(
        error, error_size,
        "descr: elements of type '%s' are not supported; float32, float16, uint16 and bool are",
        descr);
}

/* Fills type, n_dims, shape and bytes. */
static int parse_header(npy_array *array, const char *text, size_t length, char *error,
                        size_t error_size) {
    enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };
    cursor c = {text, text + length};
    char string[32];
    int seen = 0, comma = 1;
    if (!take(&c, '{')) return text_error(error, error_size, "the header is not a dictionary");
    while (!take(&c, '}')) {
        if (!comma || !take_string(&c, string, sizeof string) || !take(&c, ':'))
            return text_error(error, error_size, "the header is malformed");
        int key = strcmp(string, "descr") == 0           ? SEEN_DESCR
                  : strcmp(string, "fortran_order") == 0 ? SEEN_ORDER
                  : strcmp(string, "shape") == 0         ? SEEN_SHAPE
                                                         : 0;
        if (!key)
            return text_error(error, error_size, "the header has an unknown key '%s'", string);
        if (seen & key)
            return text_error(error, error_size, "the header has the key '%s' twice", string);
        seen |= key;
        if (key == SEEN_SHAPE) {
            if (take_shape(&c, array, error, error_size) != 0) return -1;
        } else if (key == SEEN_DESCR) {
            skip_blanks(&c);
            if (c.at < c.end && *c.at == '[')
                return text_error(error, error_size, "descr: structured arrays are not supported");
            if (!take_string(&c, string, sizeof string))
                return text_error(error, error_size, "descr: not a string");
            if (set_type(array, string, error, error_size) != 0) return -1;
        } else if (take_name(&c, "True")) {
            return text_error(error, error_size,
                              "fortran_order: the array is in Fortran order; save "
                              "numpy.ascontiguousarray(x) instead");
        } else if (!take_name(&c, "False")) {
            return text_error(error, error_size, "fortran_order: neither True nor False");
        }
        comma = take(&c, ',');
    }
    skip_blanks(&c);
    if (c.at != c.end)
        return text_error(error, error_size, "the header has text after its dictionary");
    if (seen != SEEN_ALL)
        return text_error(error, error_size, "the header lacks '%s'",
                          !(seen & SEEN_DESCR)   ? "descr"
                          : !(seen & SEEN_ORDER) ? "fortran_order"
                                                 : "shape");

    /* The product of the non-zero dimensions must fit as well, so that whoever multiplies a subset
     * of them cannot overflow either. */
    uint64_t bytes = types[array->type].size, empty = 0;
    for (int i = 0; i < array->n_dims; i++) {
        if (array->shape[i] == 0)
            empty = 1;
        else if (__builtin_mul_overflow(bytes, (uint64_t)array->shape[i], &bytes) ||
                 bytes > INT64_MAX || bytes > SIZE_MAX)
            return text_error(error, error_size, "shape: the array has more than 2^63 - 1 bytes");
    }
    array->bytes = empty ? 0 : (size_t)bytes;
    return 0;
}

/* From the first bytes of a file: how long prefix and header are. */
static int parse_prefix(const unsigned char *bytes, size_t size, size_t *prefix, size_t *header,
                        char *error, size_t error_size) {
    static const unsigned char magic[MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    if (size < MAGIC_BYTES || memcmp(bytes, magic, MAGIC_BYTES) != 0)
        return text_error(error, error_size, "not a .npy file");
    if (size < 10) return text_error(error, error_size, "the file is cut short within its header");
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
        return text_error(error, error_size,
                          "format version %d.%d is not known; 1.0, 2.0 and 3.0 are", bytes[6],
                          bytes[7]);
    *prefix = bytes[6] == 1 ? 10 : PREFIX_MAX;
    if (size < *prefix)
        return text_error(error, error_size, "the file is cut short within its header");
    *header = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1) *header |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (*header > HEADER_MAX)
        return text_error(error, error_size, "the header claims %zu bytes; at most %d are accepted",
                          *header, HEADER_MAX);
    return 0;
}

static int check_size(const npy_array *array, uint64_t left, char *error, size_t error_size) {
    if (array->bytes == left) return 0;
    return text_error(
        error, error_size, "%s: the shape needs %zu bytes of elements, the file has %" PRIu64,
        array->bytes > left ? "the file is cut short" : "the file is too long", array->bytes, left);
}

static int allocate(npy_array *array, char *error, size_t error_size) {
    size_t room = (array->bytes / DATA_ALIGNMENT + 1) * DATA_ALIGNMENT;
    array->data = aligned_alloc(DATA_ALIGNMENT, room);
    return array->data ? 0
                       : text_error(error, error_size, "out of memory for %zu bytes", array->bytes);
}

/* ------------------------------------------------------------------ reading */

int npy_parse(npy_array *array, const void *bytes, size_t size, char *error, size_t error_size) {
    const unsigned char *b = bytes;
    size_t prefix = 0, header = 0;
    *array = (npy_array){0};
    if (parse_prefix(b, size, &prefix, &header, error, error_size) != 0) return -1;
    if (header > size - prefix)
        return text_error(error, error_size, "the file is cut short within its header");
    if (parse_header(array, (const char *)b + prefix, header, error, error_size) != 0 ||
        check_size(array, size - prefix - header, error, error_size) != 0 ||
        allocate(array, error, error_size) != 0)
        return -1;
    if (array->bytes) memcpy(array->data, b + prefix + header, array->bytes);
    return 0;
}

/* Everything but naming the path and closing the file. */
static int read_stream(npy_array *array, FILE *stream, char *error, size_t error_size) {
    struct stat status;
    if (fstat(fileno(stream), &status) != 0)
        return text_error(error, error_size, "%s", strerror(errno));
    if (!S_ISREG(status.st_mode)) return text_error(error, error_size, "not a regular file");
    uint64_t size = (uint64_t)status.st_size;
    unsigned char first[PREFIX_MAX] = {0};
    size_t prefix = 0, header = 0;
    if (parse_prefix(first, fread(first, 1, sizeof first, stream), &prefix, &header, error,
                     error_size) != 0)
        return -1;
    if (size < prefix || header > size - prefix)
        return text_error(error, error_size, "the file is cut short within its header");
    char *text = malloc(header + 1);
    if (!text) return text_error(error, error_size, "out of memory for %zu bytes", header);
    int bad =
        fseek(stream, (long)prefix, SEEK_SET) != 0 || fread(text, 1, header, stream) != header;
    if (bad)
        text_error(error, error_size, "cannot be read: %s",
                   ferror(stream) ? strerror(errno) : "the file shrinks while it is read");
    else
        bad = parse_header(array, text, header, error, error_size) != 0 ||
              check_size(array, size - prefix - header, error, error_size) != 0 ||
              allocate(array, error, error_size) != 0;
    free(text);
    if (bad) return -1;
    if (array->bytes && fread(array->data, 1, array->bytes, stream) != array->bytes) {
        npy_free(array);
        return text_error(error, error_size, "cannot be read: %s",
                          ferror(stream) ? strerror(errno) : "the file shrinks while it is read");
    }
    return 0;
}

int npy_read(npy_array *array, const char *path, char *error, size_t error_size) {
    char why[256], shown[TEXT_PATH];
    *array = (npy_array){0};
    /* O_NONBLOCK: a pipe without a writer is to be refused, not waited for. It means nothing for
     * regular files. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (!stream) {
        int number = errno;
        if (descriptor >= 0) close(descriptor);
        return text_error(error, error_size, "%s: %s", text_path(shown, path), strerror(number));
    }
    int bad = read_stream(array, stream, why, sizeof why);
    fclose(stream);
    if (bad) text_error(error, error_size, "%s: %s", text_path(shown, path), why);
    return bad;
}

void npy_free(npy_array *array) {
    free(array->data);
    *array = (npy_array){0};
}

/* ------------------------------------------------------------------ writing */

void npy_put(FILE *stream, npy_type type, int n_dims, const int64_t *shape, const void *data) {
    /* Room for eight dimensions of 20 characters each; padded as NumPy does, so that the elements
     * start at a multiple of 64. */
    char header[320];
    int length = snprintf(header, sizeof header,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
    uint64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        length += snprintf(header + length, sizeof header - (size_t)length, "%s%" PRId64,
                           i ? ", " : "", shape[i]);
        count *= (uint64_t)shape[i];
    }
    length +=
        snprintf(header + length, sizeof header - (size_t)length, "%s), }", n_dims == 1 ? "," : "");
    while ((10 + length + 1) % 64) header[length++] = ' ';
    header[length++] = '\n';
    const unsigned char prefix[10] = {0x93,
                                      'N',
                                      'U',
                                      'M',
                                      'P',
                                      'Y',
                                      1,
                                      0,
                                      (unsigned char)(length & 255),
                                      (unsigned char)(length >> 8)};
    fwrite(prefix, 1, sizeof prefix, stream);
    fwrite(header, 1, (size_t)length, stream);
    if (count) fwrite(data, types[type].size, count, stream);
}

int npy_write(const char *path, npy_type type, int n_dims, const int64_t *shape, const void *data,
              char *error, size_t error_size) {
    text_file file;
    if (text_file_open(&file, path, error, error_size) != 0) return -1;
    npy_put(file.stream, type, n_dims, shape, data); /* failures show when the file is closed */
    if (text_file_close(&file, error, error_size) != 0) return -1;
    return text_file_publish(&file, error, error_size);
}
