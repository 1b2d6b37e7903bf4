/* SPDX-License-Identifier: Apache-2.0 */
#include "operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "reference.h"
#include "results.h"

/* So many values are drawn, and repeat: a prime, so that rows differ. */
enum { PERIOD = 1048583 };

int operands_make(operands *o, uint32_t dtype, int64_t n) {
    const size_t count = (size_t)(n * n), drawn = count < PERIOD ? count : PERIOD;
    uint64_t s = 0x9e3779b97f4a7c15u;
    o->n = n;
    o->dtype = dtype;
    o->bytes = count * dtype_size(dtype);
    if (!(o->data = malloc(o->bytes))) return -1;
    for (size_t i = 0; i < drawn; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        const float f = (float)((int64_t)(s >> 40) - (1 << 23)) / (float)(1 << 23);
        if (dtype == TESS_F32)
            ((float *)o->data)[i] = f;
        else
            ((uint16_t *)o->data)[i] = dtype == TESS_F16 ? float_to_half(f) : float_to_bf16(f);
    }
    const size_t size = dtype_size(dtype);
    for (size_t i = drawn, n_more; i < count; i += n_more) {
        n_more = i < count - i ? i : count - i;
        memcpy((char *)o->data + i * size, o->data, n_more * size);
    }
    return 0;
}

void operands_free(operands *o) {
    free(o->data);
    o->data = NULL;
}

int operands_check(const operands *o, int (*fetch)(void *user, void *to, uint64_t at, size_t bytes),
                   void *user) {
    const int64_t n = o->n, at[3][2] = {{0, 0}, {n - 1, n / 3}, {n / 2, n - 1}};
    const size_t size = dtype_size(o->dtype);
    const double bound = o->dtype == TESS_F32 ? 1e-4 : o->dtype == TESS_F16 ? 2e-3 : 1.6e-2;
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        unsigned char got[4];
        for (int64_t k = 0; k < n; k++)
            sum += load_element(o->dtype, o->data, at[i][0] * n + k) *
                   load_element(o->dtype, o->data, k * n + at[i][1]);
        if (fetch(user, got, (uint64_t)(at[i][0] * n + at[i][1]) * size, size) != 0 ||
            !(fabs(load_element(o->dtype, got, 0) - sum) <=
              bound * (1 + fabs(sum)) + 1e-6 * (double)n))
            return 0;
    }
    return 1;
}
