/* SPDX-License-Identifier: Apache-2.0 */
/* Device code that the build has embedded for CUDA and HIP: every image is what its row says, ends
 * where it should, and holds every kernel that the host asks for. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "driver.h"
#include "inflate.h"

extern const tess_driver_image tess_cuda_images[], tess_cuda_sm90_images[],
    tess_cuda_sm90_backward_images[], tess_cuda_sm80_images[], tess_cuda_sm80_backward_images[],
    tess_cuda_decode_images[], tess_hip_images[];

/* The lists as drivers get them: inflated, with a 0 behind each image. */
enum { CUDA, SM90, SM90_BACKWARD, SM80, SM80_BACKWARD, DECODE, HIP, LISTS, MOST_IMAGES = 32 };
static const tess_driver_image *const deflated[LISTS] = {
    tess_cuda_images,      tess_cuda_sm90_images,          tess_cuda_sm90_backward_images,
    tess_cuda_sm80_images, tess_cuda_sm80_backward_images, tess_cuda_decode_images,
    tess_hip_images};
static tess_driver_image lists[LISTS][MOST_IMAGES];

static void inflate_all(void) {
    for (int l = 0; l < LISTS; l++)
        for (int n = 0; n < MOST_IMAGES - 1 && deflated[l][n].data; n++) {
            const tess_driver_image *from = &deflated[l][n];
            const size_t size = (size_t)(from->end - from->data),
                         bytes = tess_inflated_size(from->data, size);
            unsigned char *data = calloc(bytes + 1, 1);
            if (!data || tess_inflate(from->data, size, data, bytes) != 0) {
                printf("%s does not inflate\n", from->arch);
                exit(1);
            }
            lists[l][n] = (tess_driver_image){from->arch, data, data + bytes};
        }
}

static void free_all(void) {
    for (int l = 0; l < LISTS; l++)
        for (int n = 0; n < MOST_IMAGES; n++) free((void *)(uintptr_t)lists[l][n].data);
}

enum { MACHINE_CUDA = 190, MACHINE_AMD = 224 };

static const char *const dtypes[] = {"f32", "f16", "bf16"};
static const char *const fast_dims[] = {"64", "96", "128", "192", "256"};

/* What the ELF header of AMD code objects says of the instruction set (EF_AMDGPU_MACH). */
static const struct {
    const char *arch;
    unsigned code;
} amd[] = {{"gfx906", 0x2f},  {"gfx908", 0x30},  {"gfx90a", 0x3f},  {"gfx942", 0x4c},
           {"gfx950", 0x4f},  {"gfx1030", 0x36}, {"gfx1100", 0x41}, {"gfx1101", 0x46},
           {"gfx1102", 0x47}, {"gfx1103", 0x44}, {"gfx1150", 0x43}, {"gfx1151", 0x4a},
           {"gfx1200", 0x48}, {"gfx1201", 0x4e}};

static const Elf64_Ehdr *header_of(const tess_driver_image *image) {
    const Elf64_Ehdr *h = (const void *)image->data;
    const size_t size = (size_t)(image->end - image->data);
    if (size < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        fail_msg("%s: no ELF file", image->arch);
    if (h->e_shoff > size || h->e_shentsize != sizeof(Elf64_Shdr) ||
        h->e_shnum > (size - h->e_shoff) / sizeof(Elf64_Shdr))
        fail_msg("%s: cut short", image->arch);
    return h;
}

/* Whether a function whose name begins so can be found by a driver; `whole`: and ends there. */
static int elf_has(const tess_driver_image *image, const char *name, int whole) {
    const Elf64_Ehdr *h = header_of(image);
    const Elf64_Shdr *sections = (const void *)(image->data + h->e_shoff);
    for (unsigned n = 0; n < h->e_shnum; n++) {
        if (sections[n].sh_type != SHT_SYMTAB && sections[n].sh_type != SHT_DYNSYM) continue;
        const Elf64_Sym *symbols = (const void *)(image->data + sections[n].sh_offset);
        const char *names = (const char *)image->data + sections[sections[n].sh_link].sh_offset;
        for (size_t i = 0; i < sections[n].sh_size / sizeof *symbols; i++)
            if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC &&
                ELF64_ST_BIND(symbols[i].st_info) == STB_GLOBAL &&
                strncmp(names + symbols[i].st_name, name, strlen(name) + (whole != 0)) == 0)
                return 1;
    }
    return 0;
}

/* In PTX a kernel begins with ".visible .entry name(". The text ends with a zero, which drivers
 * look for. */
static int ptx_has(const tess_driver_image *image, const char *name, int whole) {
    char text[96];
    snprintf(text, sizeof text, ".entry %s%s", name, whole ? "(" : "");
    return strstr((const char *)image->data, text) != NULL;
}

static int is_ptx(const tess_driver_image *image) {
    return strncmp(image->arch, "compute_", 8) == 0;
}

/* A build of a few shapes of CUDA's kernels (backends/cuda/kernels/few.cuh) lacks most of them, and
 * has some. */
static void wants(const tess_driver_image *image, const char *name) {
    const int whole = !TESS_FEW_KERNELS || strncmp(image->arch, "gfx", 3) == 0;
    const char *const wanted = whole ? name : "tess_";
    if (!(is_ptx(image) ? ptx_has(image, wanted, whole) : elf_has(image, wanted, whole)))
        fail_msg("%s has no %s", image->arch, name);
}

static void wants_portable(const tess_driver_image *image) {
    char name[64];
    for (int t = 0; t < 3; t++) {
        for (int n = 0; n < TESS_PORTABLE_BUCKETS; n++) {
            const unsigned head_dim = tess_portable.shapes[n].head_dim;
            snprintf(name, sizeof name, "tess_forward_%s_%u", dtypes[t], head_dim);
            wants(image, name);
            snprintf(name, sizeof name, "tess_forward_few_%s_%u", dtypes[t], head_dim);
            wants(image, name);
        }
        snprintf(name, sizeof name, "tess_merge_%s", dtypes[t]);
        wants(image, name);
    }
}

static void check_ptx(const tess_driver_image *image) {
    char target[48];
    const char *text = (const char *)image->data;
    assert_int_equal(*image->end, 0);
    assert_int_equal(strlen(text), image->end - image->data);
    snprintf(target, sizeof target, ".target sm_%s", image->arch + 8);
    const char *found = strstr(text, target);
    if (!found || (found[strlen(target)] >= '0' && found[strlen(target)] <= '9'))
        fail_msg("%s: the text has no '%s'", image->arch, target);
}

/* Since version 8 of their format, cubins have the architecture one byte further up. */
static void check_cubin(const tess_driver_image *image) {
    const Elf64_Ehdr *h = header_of(image);
    const unsigned arch =
        h->e_ident[EI_ABIVERSION] >= 8 ? h->e_flags >> 8 & 0xff : h->e_flags & 0xff;
    assert_int_equal(h->e_machine, MACHINE_CUDA);
    assert_int_equal(arch, atoi(image->arch + 3));
}

static void test_cuda(void **state) {
    (void)state;
    if (!lists[CUDA][0].data) skip();
    for (const tess_driver_image *image = lists[CUDA]; image->data; image++) {
        if (is_ptx(image))
            check_ptx(image);
        else
            check_cubin(image);
        wants_portable(image);
    }
}

/* The kernels that are compiled for the tensor cores of one family. */
static void wants_fast(const tess_driver_image *image, const char *family) {
    char name[64];
    check_cubin(image);
    for (int t = 1; t < 3; t++)
        for (size_t n = 0; n < sizeof fast_dims / sizeof *fast_dims; n++) {
            snprintf(name, sizeof name, "tess_%s_%s_%s", family, dtypes[t], fast_dims[n]);
            wants(image, name);
        }
}

static void test_sm90(void **state) {
    (void)state;
    if (!lists[SM90][0].data) skip();
    assert_string_equal(lists[SM90][0].arch, "sm_90a");
    assert_null(lists[SM90][1].data);
    wants_fast(&lists[SM90][0], "sm90");
}

static void test_sm80(void **state) {
    (void)state;
    if (!lists[SM80][0].data) skip();
    for (const tess_driver_image *image = lists[SM80]; image->data; image++)
        wants_fast(image, "sm80");
    for (const tess_driver_image *image = lists[SM80]; image->data; image++) {
        wants(image, "tess_sm80_f32_64");
        wants(image, "tess_sm80_f32_128");
    }
}

static void test_decode(void **state) {
    (void)state;
    if (!lists[DECODE][0].data) skip();
    for (const tess_driver_image *image = lists[DECODE]; image->data; image++) {
        wants_fast(image, "decode16");
        for (int t = 1; t < 3; t++) {
            char name[64];
            snprintf(name, sizeof name, "tess_decode32_%s_128", dtypes[t]);
            wants(image, name);
        }
    }
}

static void test_hip(void **state) {
    (void)state;
    if (!lists[HIP][0].data) skip();
    for (const tess_driver_image *image = lists[HIP]; image->data; image++) {
        const Elf64_Ehdr *h = header_of(image);
        unsigned known = 0;
        for (size_t n = 0; n < sizeof amd / sizeof *amd; n++)
            if (strcmp(amd[n].arch, image->arch) == 0) known = amd[n].code;
        assert_int_equal(h->e_machine, MACHINE_AMD);
        if (!known) fail_msg("%s is not in this test's list", image->arch);
        assert_int_equal(h->e_flags & 0xff, known);
        wants_portable(image);
    }
}

/* No image is listed twice: the second could never be used. */
static void test_lists(void **state) {
    (void)state;
    for (size_t l = 0; l < LISTS; l++)
        for (const tess_driver_image *a = lists[l]; a->data; a++)
            for (const tess_driver_image *b = a + 1; b->data; b++)
                assert_string_not_equal(a->arch, b->arch);
}

/* Kernels of gradients that the host asks for, whose images have no others to tell them by. */
static void test_backward(void **state) {
    (void)state;
    if (!lists[CUDA][0].data) skip();
    for (int l = SM90_BACKWARD; l <= SM80_BACKWARD; l += SM80_BACKWARD - SM90_BACKWARD)
        for (const tess_driver_image *image = lists[l]; image->data; image++) check_cubin(image);
    for (const tess_driver_image *image = lists[CUDA]; image->data; image++)
        wants(image, "tess_backward_delta_f32");
}

int main(void) {
    if (!deflated[CUDA][0].data && !deflated[HIP][0].data) {
        puts("skipped: the build has no device code");
        return 77;
    }
    inflate_all();
    const int failed =
        RUN_TESTS(TEST(test_cuda), TEST(test_sm90), TEST(test_sm80), TEST(test_decode),
                  TEST(test_backward), TEST(test_hip), TEST(test_lists));
    free_all();
    return failed;
}
