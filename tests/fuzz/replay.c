/* SPDX-License-Identifier: Apache-2.0 */
/* The main function of targets built without libFuzzer: runs the files of the folders given, each
 * also cut short and with single bytes changed. */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

enum { MOST = 1 << 20, CHANGES = 400 };

static void run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(MOST);
    if (!file || !data) {
        perror(path);
        exit(1);
    }
    const size_t size = fread(data, 1, MOST, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    for (size_t n = 0; n < CHANGES && n < size; n++) {
        const size_t at = n * (size / CHANGES + 1) % size;
        /* A block of its own, so that a checker of memory sees every read past its end. */
        uint8_t *copy = malloc(at ? at : 1);
        if (!copy) exit(1);
        memcpy(copy, data, at);
        LLVMFuzzerTestOneInput(copy, at);
        free(copy);
        const uint8_t was = data[at];
        static const uint8_t changes[] = {0x01, 0x80, 0xff};
        for (size_t c = 0; c < sizeof changes; c++) {
            data[at] = was ^ changes[c];
            LLVMFuzzerTestOneInput(data, size);
        }
        data[at] = was;
    }
    free(data);
}

int main(int argc, char **argv) {
    int files = 0;
    for (int n = 1; n < argc; n++) {
        DIR *folder = opendir(argv[n]);
        if (!folder) {
            perror(argv[n]);
            return 1;
        }
        for (const struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            struct stat status;
            if (snprintf(path, sizeof path, "%s/%s", argv[n], entry->d_name) >= (int)sizeof path)
                return 1;
            if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) continue;
            run_file(path);
            files++;
        }
        closedir(folder);
    }
    printf("%d files\n", files);
    return files == 0; /* without seeds nothing was tested */
}
