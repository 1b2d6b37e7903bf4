/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

struct limits_server {
    pid_t process;
    int line; /* a socket to it; -1: closed */
};

/* Whole objects alone; 1 when done, 0 at the end of the stream. */
static int write_all(int to, const void *data, size_t size) {
    const char *p = data;
    while (size) {
        const ssize_t n = send(to, p, size, MSG_NOSIGNAL);
        const ssize_t done = n < 0 && errno == ENOTSOCK ? write(to, p, size) : n;
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        p += done;
        size -= (size_t)done;
    }
    return 1;
}

static int read_all(int from, void *data, size_t size) {
    char *p = data;
    while (size) {
        const ssize_t n = read(from, p, size);
        if (n < 0 && errno == EINTR && !clock_interrupted()) continue;
        if (n <= 0) return 0;
        p += n;
        size -= (size_t)n;
    }
    return 1;
}

void limits_send(int out, const limits_message *m) {
    if (!write_all(out, m, sizeof *m)) _exit(1);
}

/* ------------------------------------------------------------------ the server */

/* Forwards what the child sends until it ends, takes too long, or nobody listens any more. */
static void follow(int line, int in, pid_t child, const limits_job *job, limits_message *last) {
    const double end = clock_now() + job->limit;
    int status = 0, killed = 0;
    limits_message m;
    for (;;) {
        const double left = end - clock_now();
        struct pollfd p[2] = {{.fd = in, .events = POLLIN}, {.fd = line, .events = POLLIN}};
        const int ready = left > 0 ? poll(p, 2, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0 || p[1].revents) { /* the parent says nothing but good-bye meanwhile */
            killed = 1;
            kill(child, SIGKILL);
            break;
        }
        if (!read_all(in, &m, sizeof m)) break;
        m.last = 0;
        if (!write_all(line, &m, sizeof m)) {
            kill(child, SIGKILL);
            break;
        }
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (killed)
        snprintf(last->note, sizeof last->note, "%s took longer than %.0f s", job->name,
                 job->limit);
    else if (WIFSIGNALED(status))
        snprintf(last->note, sizeof last->note, "%s ended by signal %d", job->name,
                 WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        snprintf(last->note, sizeof last->note, "%s could not be measured", job->name);
}

static void serve_one(int line, const limits_job *job, void (*work)(const limits_job *, int)) {
    limits_message last = {.last = 1};
    int ends[2];
    if (pipe(ends) != 0) {
        snprintf(last.note, sizeof last.note, "pipe() failed");
    } else {
        const pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            close(line);
            work(job, ends[1]);
            _exit(0);
        }
        close(ends[1]);
        if (child < 0)
            snprintf(last.note, sizeof last.note, "fork() failed");
        else
            follow(line, ends[0], child, job, &last);
        close(ends[0]);
    }
    write_all(line, &last, sizeof last);
}

static void serve(int line, void (*work)(const limits_job *, int)) {
    static limits_job job;
    /* The suite ends it by closing the line. */
    signal(SIGINT, SIG_IGN);
    while (read_all(line, &job, sizeof job)) serve_one(line, &job, work);
    _exit(0);
}

/* ------------------------------------------------------------------ the suite's side */

limits_server *limits_start(void (*work)(const limits_job *job, int out)) {
    int ends[2];
    limits_server *s = calloc(1, sizeof *s);
    if (!s || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        free(s);
        return NULL;
    }
    fflush(NULL);
    s->process = fork();
    if (s->process == 0) {
        close(ends[0]);
        serve(ends[1], work);
    }
    close(ends[1]);
    s->line = ends[0];
    /* A program that is started later would keep the line open, and the server waiting. */
    (void)fcntl(s->line, F_SETFD, FD_CLOEXEC);
    if (s->process > 0) return s;
    close(s->line);
    free(s);
    return NULL;
}

int limits_run(limits_server *s, const limits_job *job,
               void (*found)(void *user, const limits_message *m), void *user) {
    limits_message m = {.last = 0};
    if (s->line < 0 || !write_all(s->line, job, sizeof *job)) return -1;
    while (!m.last) {
        if (!read_all(s->line, &m, sizeof m)) {
            close(s->line); /* the server ends the child then */
            s->line = -1;
            return -1;
        }
        found(user, &m);
    }
    return 0;
}

void limits_stop(limits_server *s) {
    int status;
    if (!s) return;
    if (s->line >= 0) close(s->line);
    while (waitpid(s->process, &status, 0) < 0 && errno == EINTR) continue;
    free(s);
}
