/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's own library. */
int own_answer(void);

int own_answer(void) { return 42; }
