/* Prints all that a service's file says, times snapshots, or gives weights and actions.
 *
 *     cc -std=c11 -O2 -I crates/observe/include -o observe crates/observe/examples/observe.c
 *     observe print FILE | observe time FILE | observe act FILE
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fenxi_observe.h"

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct fenxi_sample *)a)->number;
    uint64_t y = ((const struct fenxi_sample *)b)->number;
    return (x > y) - (x < y);
}

static void print_row(const struct fenxi_observe *o, uint64_t slot, const uint64_t *row)
{
    printf("egress %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ", slot, row[0],
           row[1] & 0xffffffff, row[1] >> 32);
    for (int byte = 0; byte < 16; byte++)
        printf("%02x", ((const unsigned char *)(row + 2))[byte]);
    printf("\n");
    uint64_t *histograms = calloc(o->histogram_words, 8);
    int has_histograms = fenxi_observe_histograms(o, slot, row[0], histograms) == FENXI_OK;
    for (uint64_t index = 0; index < o->fields; index++) {
        struct fenxi_field field;
        fenxi_observe_record(o, index, &field);
        printf("%s %s %" PRIu64, field.name, field.unit, field.kind);
        if (field.kind <= FENXI_GAUGE) {
            printf(" %" PRIu64, row[field.offset]);
        } else if (field.kind == FENXI_HISTOGRAM) {
            for (uint64_t word = 0; has_histograms && word < field.words; word++)
                printf(" %" PRIu64, histograms[field.offset + word]);
        } else {
            struct fenxi_sample samples[FENXI_SAMPLES];
            int found = fenxi_observe_samples(o, slot, row[0], &field, samples);
            if (found > 0)
                qsort(samples, found, sizeof *samples, by_number);
            for (int sample = 0; sample < found; sample++)
                printf(" %" PRIu64 ":%" PRIu64 ":%" PRIu64, samples[sample].number,
                       samples[sample].time_ns, samples[sample].value);
        }
        printf("\n");
    }
    free(histograms);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Weights of 1, 2 and so on for a minute, each with an action: marks 1, 2 and so on, a DSCP beside
 * every second one, and task 0 beside every third. */
static int act(const char *path)
{
    struct fenxi_actions a;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    int mapped = fd < 0 ? FENXI_IO : fenxi_actions_map(&a, fd);
    if (mapped != FENXI_OK) {
        printf("error %d\n", mapped);
        return 1;
    }
    uint64_t *image = calloc(a.image_words, 8);
    for (uint64_t slot = 0; slot < a.egresses; slot++) {
        uint64_t action = fenxi_action_mark(slot + 1);
        action |= slot % 2 ? fenxi_action_dscp(46) : 0;
        action |= slot % 3 ? 0 : fenxi_action_task(0);
        fenxi_actions_set(&a, image, slot, slot + 1, action);
    }
    fenxi_actions_publish(&a, image, now_ns() + UINT64_C(60000000000));
    free(image);
    fenxi_actions_close(&a);
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 64;
    if (strcmp(arguments[1], "act") == 0)
        return act(arguments[2]);
    struct fenxi_observe o;
    int opened = fenxi_observe_open(&o, arguments[2]);
    if (opened != FENXI_OK) {
        printf("error %d\n", opened);
        return 1;
    }
    uint64_t *frame = calloc(o.frame_words, 8);
    int read = fenxi_observe_read(&o, frame);
    if (read != FENXI_OK) {
        printf("error %d\n", read);
        return 1;
    }
    if (strcmp(arguments[1], "print") == 0) {
        printf("frame %" PRIu64 " %" PRIu64 " %d\n", frame[0], frame[1], fenxi_observe_ended(&o));
        for (uint64_t slot = 0; slot < frame[2]; slot++) {
            const uint64_t *row = fenxi_observe_row(&o, frame, slot);
            if (row)
                print_row(&o, slot, row);
        }
    } else {
        enum { ROUNDS = 20000 };
        static uint64_t took[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t begun = now_ns();
            read |= fenxi_observe_read(&o, frame);
            took[round] = now_ns() - begun;
            /* So that the writer publishes between two. */
            usleep(50);
        }
        qsort(took, ROUNDS, sizeof *took, ascending);
        printf("C: %" PRIu64 " slots, p50 %.2f us, p99 %.2f us, failed %d\n", frame[2],
               took[ROUNDS / 2] / 1e3, took[ROUNDS * 99 / 100] / 1e3, read);
    }
    free(frame);
    fenxi_observe_close(&o);
    return 0;
}
