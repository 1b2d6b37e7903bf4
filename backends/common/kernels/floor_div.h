/* SPDX-License-Identifier: Apache-2.0 */
/* A quotient that is rounded down, for positions before the first key. */
#ifndef TESS_FLOOR_DIV_H
#define TESS_FLOOR_DIV_H

TESS_FUNCTION int tess_floor_div(int a, int b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }

#endif /* TESS_FLOOR_DIV_H */
