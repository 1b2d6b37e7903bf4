/* SPDX-License-Identifier: Apache-2.0 */
#include "line.h"

#include <string.h>

#include "results.h"
#include "text.h"

size_t line_word(const char **at) {
    *at += strspn(*at, " \t");
    size_t n = 0;
    while ((*at)[n] && (*at)[n] != ' ' && (*at)[n] != '\t')
        n += (*at)[n] == '\\' && (*at)[n + 1] ? 2 : 1;
    return n;
}

int line_escape(const char *word, char *buffer, size_t size) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/%@";
    size_t n = 0;
    for (; *word; word++) {
        if (n + 3 > size) return -1;
        if ((unsigned char)*word < 0x80 && !strchr(plain, *word)) buffer[n++] = '\\';
        buffer[n++] = *word;
    }
    if (n >= size) return -1;
    buffer[n] = 0;
    return 0;
}

int line_parse(problem *p, const char *line, char *error, size_t error_size) {
    char word[BENCH_LINE];
    problem_init(p);
    for (size_t length; (length = line_word(&line)) > 0; line += length) {
        size_t n = 0;
        if (length >= sizeof word) return text_error(error, error_size, "the line is too long");
        for (size_t i = 0; i < length; i++) {
            if (line[i] == '\\' && i + 1 < length) i++;
            word[n++] = line[i];
        }
        word[n] = 0;
        if (problem_word(p, word, error, error_size) != 0) return -1;
    }
    return problem_finish(p, error, error_size);
}

int line_format(problem *p, char *buffer, size_t size) {
    char mask[BENCH_LINE], *own = p->mask_path;
    if (own && line_escape(own, mask, sizeof mask) != 0) return -1;
    if (own) p->mask_path = mask;
    int n = problem_format(p, buffer, size);
    p->mask_path = own;
    return n >= 0 && (size_t)n < size ? 0 : -1;
}
