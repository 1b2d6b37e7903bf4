/* SPDX-License-Identifier: Apache-2.0 */
/* The commands `tessera bench`, `tessera compare` and `tessera tune`. */
#ifndef TESSERA_BENCH_BENCH_H
#define TESSERA_BENCH_BENCH_H

/* argv[0] is the command's own name ("bench", "compare", "tune"). Both return the exit status: 0, 1
 * when something failed, 2 when the words cannot be understood. */
int bench_main(int argc, char **argv);
int compare_main(int argc, char **argv);
int tune_main(int argc, char **argv);

#endif
