/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set-user-ID program whose user points the OpenCL loader to a library of his own. Root makes
 * a copy of this program that belongs to root and lets another user start it; elsewhere the test
 * is skipped. The copy opens the best device and lists all there are, and no loader of drivers
 * may be in the process afterwards, nor the user's library.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tessera/tessera.h>

enum { SKIPPED = 77, NOBODY = 65534 };

static const char *const loaders[] = {"libOpenCL", "libvulkan", "libcuda.so", "libamdhip64",
                                      "tessera_elevated_icd"};
enum { N_LOADERS = sizeof loaders / sizeof *loaders };

static int loaded; /* bit n: loaders[n] */

static int look(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size;
    (void)user;
    for (int n = 0; n < N_LOADERS; n++)
        if (strstr(info->dlpi_name, loaders[n])) loaded |= 1 << n;
    return 0;
}

static int look_at_loaders(const char *when, int wanted) {
    dl_iterate_phdr(look, NULL);
    for (int n = 0; n < N_LOADERS; n++)
        if ((loaded & ~wanted) >> n & 1)
            printf("%s is in the process after %s\n", loaders[n], when);
    return (loaded & ~wanted) != 0;
}

/* What the copy does, with more rights than its user. */
static int run_elevated(void) {
    tess_runtime *runtime;
    tess_device *device;
    tess_backend_info backend = {.struct_size = sizeof backend};
    tess_device_info info = {.struct_size = sizeof info};
    const tess_device_desc cpu = {.struct_size = sizeof cpu, .id = "cpu"},
                           opencl = {.struct_size = sizeof opencl, .id = "opencl"};
    if (!getauxval(AT_SECURE) || geteuid() == getuid()) {
        printf("skipped: the file system does not honour set-user-ID\n");
        return SKIPPED;
    }
    if (tess_runtime_create(NULL, &runtime) != TESS_OK ||
        tess_device_open(runtime, NULL, &device) != TESS_OK) {
        printf("%s\n", tess_last_error());
        return 1;
    }
    tess_device_release(device);
    if (look_at_loaders("opening the best device", 0)) return 1;
    for (uint32_t n = 0; tess_runtime_backend(runtime, n, &backend) == TESS_OK; n++)
        printf("%s: %s\n", backend.name, backend.reason);
    for (uint32_t n = 0; tess_runtime_device(runtime, n, &info) == TESS_OK; n++)
        printf("%s: %s\n", info.id, info.name);
    if (look_at_loaders("listing what there is", 0)) return 1;
    if (tess_device_open(runtime, &cpu, &device) != TESS_OK) return 1;
    tess_device_release(device);
    if (look_at_loaders("opening the CPU", 0)) return 1;
    /* An application that names a backend gets it, and with it whatever its loader loads. */
    if (tess_device_open(runtime, &opencl, &device) == TESS_OK) tess_device_release(device);
    if (look_at_loaders("naming opencl", 1 | 1 << (N_LOADERS - 1))) return 1;
    printf("naming opencl %s its loader%s\n", loaded & 1 ? "opened" : "did not open",
           loaded >> (N_LOADERS - 1) ? ", which loaded the user's library" : "");
    tess_runtime_release(runtime);
    return 0;
}

static int copy_to(const char *from, const char *to, mode_t mode) {
    static char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    int copied = in && out;
    for (size_t n; copied && (n = fread(block, 1, sizeof block, in)) > 0;)
        copied = fwrite(block, 1, n, out) == n;
    if (in) fclose(in);
    if (out) copied &= fclose(out) == 0;
    return copied && chmod(to, mode) == 0;
}

/* The folder of the user: his library, and the file that names it to the loader. */
static int make_icd(const char *folder, const char *library) {
    char path[256], copy[256];
    snprintf(copy, sizeof copy, "%s/tessera_elevated_icd.so", folder);
    snprintf(path, sizeof path, "%s/mine.icd", folder);
    FILE *file = fopen(path, "w");
    if (!file) return 0;
    fprintf(file, "%s\n", copy);
    return fclose(file) == 0 && chmod(path, 0644) == 0 && copy_to(library, copy, 0755);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/tessera-elevated-XXXXXX", program[128], command[128];
    if (argc == 2 && strcmp(argv[1], "--elevated") == 0) return run_elevated();
    if (argc != 2) {
        fprintf(stderr, "usage: %s LIBRARY, any that the user could have made\n", argv[0]);
        return 2;
    }
    if (geteuid() != 0) {
        printf("skipped: only root can make a set-user-ID program for another user\n");
        return SKIPPED;
    }
    if (!mkdtemp(folder)) return 1;
    snprintf(program, sizeof program, "%s/program", folder);
    if (chmod(folder, 0755) != 0 || !copy_to("/proc/self/exe", program, 04755) ||
        !make_icd(folder, argv[1]))
        return 1;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0 || setenv("OCL_ICD_VENDORS", folder, 1) != 0)
            _exit(SKIPPED);
        execl(program, program, "--elevated", (char *)NULL);
        perror("skipped: the program cannot be started");
        _exit(SKIPPED);
    }
    int status = 1;
    waitpid(child, &status, 0);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
