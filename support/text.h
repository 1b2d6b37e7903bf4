/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for people to read, and files that appear whole or not at all. */
#ifndef TESSERA_SUPPORT_TEXT_H
#define TESSERA_SUPPORT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TEXT_SIZE = 48 }; /* room that every function below is content with */

/* Each writes into `buffer` and returns it, so that a call can stand inside printf's arguments. */
/* "512 B", "1.50 KiB", "36.0 MiB" */
const char *text_bytes(char *buffer, size_t size, double bytes);
const char *text_count(char *buffer, size_t size, uint64_t count); /* "1,234,567" */
/* "12.3 ns", "1.23 µs", "456 ms", "7.89 s"; "-" of NaN */
const char *text_seconds(char *buffer, size_t size, double seconds);
/* "206 G" + unit, powers of 1000: unit "FLOP/s", "B/s" */
const char *text_rate(char *buffer, size_t size, double rate, const char *unit);
/* 0.5625 -> "56.2 %" */
const char *text_percent(char *buffer, size_t size, double share);

/* How many bytes the UTF-8 character at `at` has; 0 where none begins, or its end is missing. */
int text_character(const char *at);

/* A path for a message: whole, or shortened in the middle, so that what follows it is not pushed
 * out of the message. `buffer` holds TEXT_PATH. */
enum { TEXT_PATH = 208 };
const char *text_path(char *buffer, const char *path);

/* printf into `error`, cutting what does not fit; returns -1, so that a caller can `return
 * text_error(...)`. A NULL or empty buffer is legal. */
int text_error(char *error, size_t error_size, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* A file under construction: a temporary name beside `path`, which takes the place of `path` only
 * in text_file_publish. A symbolic link stays a link and its target is replaced; its permissions
 * are kept. An existing target that is no regular file is refused, and so is a name of one of the
 * process's streams, such as /dev/stdout. */
typedef struct text_file {
    FILE *stream;
    char *path;      /* owned; links resolved */
    char *temporary; /* owned; NULL once published or discarded */
} text_file;

/* All return 0, or -1 with one line in `error`; a failed step has discarded the file already.
 * text_file_discard may be called in every state of an object that text_file_open was called on,
 * and does nothing after text_file_publish. */
int text_file_open(text_file *file, const char *path, char *error, size_t error_size);
/* everything is on the disk; needed before publish */
int text_file_close(text_file *file, char *error, size_t error_size);
int text_file_publish(text_file *file, char *error, size_t error_size); /* rename */
void text_file_discard(text_file *file);

/* All steps at once. */
int text_file_write(const char *path, const void *bytes, size_t size, char *error,
                    size_t error_size);
/* Whether `path` could be written now, found out by creating and removing the temporary file: asked
 * before long work whose result goes there. */
int text_file_probe(const char *path, char *error, size_t error_size);

/* Whether two names mean one file, also one that does not exist yet: ./a and a, or x/a and y/a
 * where y is a link to x. */
int text_same_file(const char *a, const char *b);

#endif
