/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the tables of bad values: one field of a descriptor gets one value, and the call must
 * fail with the status and name the field. */
#ifndef TESSERA_TESTS_API_BAD_H
#define TESSERA_TESTS_API_BAD_H

#include <string.h>

#include "common/testlib.h"

enum {
    INV = 1 << TESS_ERROR_INVALID,
    UNS = 1 << TESS_ERROR_UNSUPPORTED,
    UNA = 1 << TESS_ERROR_UNAVAILABLE,
    OOM = 1 << TESS_ERROR_OUT_OF_MEMORY,
    VER = 1 << TESS_ERROR_VERSION,
    FINE = 1 << TESS_OK, /* the value is legal, which the table says because its neighbour is not */
};

typedef struct bad_value {
    const char *title;
    size_t at, size;
    int is_real;
    int64_t integer;
    double real;
    int statuses;      /* any of these */
    const char *field; /* that the message names */
} bad_value;

#define BAD(type, member, value, statuses, field)                                     \
    {                                                                                 \
#member " = " #value, offsetof(type, member), sizeof(((type *)0)->member), 0, \
            (int64_t)(value), 0, (statuses), (field)                                  \
    }
#define BAD_REAL(type, member, value, statuses, field)                                            \
    {                                                                                             \
#member " = " #value, offsetof(type, member), sizeof(((type *)0)->member), 1, 0, (value), \
            (statuses), (field)                                                                   \
    }

static inline void bad_apply(const bad_value *bad, void *desc) {
    const float real = (float)bad->real;
    if (bad->is_real)
        memcpy((char *)desc + bad->at, &real, sizeof real);
    else
        /* little endian, as every machine the tests run on */
        memcpy((char *)desc + bad->at, &bad->integer, bad->size);
}

/* Fails the test with the row's title unless `status` is one that the row allows and the message
 * names function and field. */
static inline void bad_check(const bad_value *bad, tess_status status, const char *function) {
    const char *text = tess_last_error();
    const size_t n = strlen(function);
    if (!(bad->statuses >> status & 1))
        fail_msg("%s: %s: %s", bad->title, tess_status_name(status),
                 status == TESS_OK ? "accepted" : text);
    if (status == TESS_OK) return;
    if (strncmp(text, function, n) != 0 || text[n] != ':')
        fail_msg("%s: the message does not begin with '%s:': %s", bad->title, function, text);
    if (bad->field && !test_names_field(text, function, bad->field))
        fail_msg("%s: the message does not name '%s': %s", bad->title, bad->field, text);
    if (strchr(text, '\n') || strlen(text) > 1000)
        fail_msg("%s: the message is not one line of sensible length", bad->title);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
