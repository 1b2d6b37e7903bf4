/* SPDX-License-Identifier: Apache-2.0 */
/* A problem as one line, as results hold it. Words are parted by blanks; a backslash takes the
 * special meaning off the character after it, so that the name of a mask may be any and the line
 * can be given to a shell. */
#ifndef TESSERA_BENCH_LINE_H
#define TESSERA_BENCH_LINE_H

#include <stddef.h>

#include "problem.h"

/* Steps over blanks to the next word; returns its length as it stands in the line, 0 at the end. */
size_t line_word(const char **at);
/* Writes `word` with the backslashes that it needs; returns -1 if it does not fit. */
int line_escape(const char *word, char *buffer, size_t size);

/* problem_init, every word, problem_finish; returns as problem_finish does. */
int line_parse(problem *p, const char *line, char *error, size_t error_size);
/* The shortest line of the problem; returns -1 if it does not fit. */
int line_format(problem *p, char *buffer, size_t size);

#endif
