/* Reads the shared memory of a service of fenxi: version 1 of the layout, which the module `layout`
 * of the crate fenxi-observe describes byte by byte. C11, Linux, little endian.
 *
 *     struct fenxi_observe service;
 *     if (fenxi_observe_open(&service, "/run/fenxi/services/web") != FENXI_OK) ...
 *     uint64_t *frame = malloc(service.frame_words * sizeof *frame);
 *     struct fenxi_field packets;
 *     fenxi_observe_field(&service, "packets_in", FENXI_COUNTER, &packets);
 *     if (fenxi_observe_read(&service, frame) == FENXI_OK)
 *         for (uint64_t slot = 0; slot < frame[2]; slot++) {
 *             const uint64_t *row = fenxi_observe_row(&service, frame, slot);
 *             if (row) printf("%" PRIu64 "\n", row[packets.offset]);
 *         }
 *
 * Nothing here blocks, allocates, or trusts the file: what it says is checked once, then copied. A
 * file in a folder that its owner truncates meanwhile gives SIGBUS; memory that came over a socket
 * is sealed against that.
 *
 * A program that has memory for weights and actions (the module `actions`) writes them so:
 *
 *     struct fenxi_actions actions;
 *     if (fenxi_actions_map(&actions, fd) != FENXI_OK) ...
 *     uint64_t *image = calloc(actions.image_words, 8);
 *     fenxi_actions_set(&actions, image, slot, 0.5, fenxi_action_dscp(46));
 *     fenxi_actions_publish(&actions, image, deadline_ns);
 */
#ifndef FENXI_OBSERVE_H
#define FENXI_OBSERVE_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum fenxi_status {
    FENXI_OK = 0,
    FENXI_IO = -1,        /* see errno */
    FENXI_FOREIGN = -2,   /* no memory of a service */
    FENXI_VERSION = -3,   /* an unknown version of the layout */
    FENXI_MALFORMED = -4, /* the file contradicts itself */
    FENXI_BUSY = -5,      /* the writer was faster in every try */
    FENXI_CHANGED = -6,   /* the slot has another egress */
    FENXI_MISSING = -7,   /* no such field */
};

enum fenxi_kind {
    FENXI_COUNTER = 1,
    FENXI_GAUGE = 2,
    FENXI_RESERVOIR = 3, /* an exponentially fading sample */
    FENXI_WINDOW = 4,    /* the newest samples */
    FENXI_HISTOGRAM = 5, /* a sum, then 64 buckets of powers of two */
};

#define FENXI_BUFFERS 3
#define FENXI_SAMPLES 128
#define FENXI_BUCKETS 64
#define FENXI_EGRESSES_MAX 4096
#define FENXI_FIELDS_MAX 256

/* A file, mapped. Sizes and offsets are in words of 8 bytes. */
struct fenxi_observe {
    const _Atomic uint64_t *words;
    size_t count;
    uint64_t egresses, fields;
    uint64_t frames, frame_words, rows, row_words;
    uint64_t histograms, histogram_stride, histogram_words;
    uint64_t reservoirs, reservoir_stride;
};

/* A record of the schema. */
struct fenxi_field {
    char name[33], unit[9];
    uint64_t kind;
    uint64_t offset; /* in a row, in a histogram buffer, or in an egress's reservoirs */
    uint64_t words;
};

struct fenxi_sample {
    uint64_t number; /* position among all samples of this egress and field */
    uint64_t time_ns, value;
};

static inline uint64_t fenxi_observe_word(const struct fenxi_observe *o, uint64_t word)
{
    return atomic_load_explicit(&o->words[word], memory_order_relaxed);
}

static inline void fenxi_observe_text(const struct fenxi_observe *o, uint64_t from, int words,
                                      char *text)
{
    for (int word = 0; word < words; word++) {
        uint64_t eight = fenxi_observe_word(o, from + word);
        memcpy(text + 8 * word, &eight, 8);
    }
    text[8 * words] = 0;
}

/* Record `index` of the schema, below o->fields. */
static inline void fenxi_observe_record(const struct fenxi_observe *o, uint64_t index,
                                        struct fenxi_field *field)
{
    uint64_t place = 64 + 8 * index;
    fenxi_observe_text(o, place, 4, field->name);
    fenxi_observe_text(o, place + 4, 1, field->unit);
    field->kind = fenxi_observe_word(o, place + 5);
    field->offset = fenxi_observe_word(o, place + 6);
    field->words = fenxi_observe_word(o, place + 7);
}

static inline uint64_t fenxi_round(uint64_t words, uint64_t multiple)
{
    return (words + multiple - 1) / multiple * multiple;
}

/* Works the layout out from the number of egresses and the schema, and compares. */
static inline int fenxi_observe_check(struct fenxi_observe *o)
{
    static const char magic[8] = "FENXIOBS";
    uint64_t expected_magic;
    memcpy(&expected_magic, magic, 8);
    if (o->count < 64 || fenxi_observe_word(o, 0) != expected_magic)
        return FENXI_FOREIGN;
    if (fenxi_observe_word(o, 1) != 1)
        return FENXI_VERSION;
    o->egresses = fenxi_observe_word(o, 5);
    o->fields = fenxi_observe_word(o, 7);
    if (o->egresses < 1 || o->egresses > FENXI_EGRESSES_MAX || o->fields > FENXI_FIELDS_MAX ||
        o->count < 64 + 8 * o->fields)
        return FENXI_MALFORMED;
    uint64_t row = 4, histogram = 2, reservoirs = 8;
    for (uint64_t index = 0; index < o->fields; index++) {
        struct fenxi_field field;
        fenxi_observe_record(o, index, &field);
        uint64_t *end, words;
        switch (field.kind) {
        case FENXI_COUNTER:
        case FENXI_GAUGE:
            end = &row, words = 1;
            break;
        case FENXI_RESERVOIR:
        case FENXI_WINDOW:
            end = &reservoirs, words = 3 * FENXI_SAMPLES;
            break;
        case FENXI_HISTOGRAM:
            end = &histogram, words = 1 + FENXI_BUCKETS;
            break;
        default:
            return FENXI_MALFORMED;
        }
        if (field.offset != *end || field.words != words)
            return FENXI_MALFORMED;
        *end += words;
    }
    o->row_words = row;
    o->histogram_words = fenxi_round(histogram, 8);
    o->reservoir_stride = fenxi_round(reservoirs, 8);
    o->rows = fenxi_round(8 + (o->egresses + 63) / 64, 8);
    o->frame_words = fenxi_round(o->rows + o->egresses * row, 8);
    o->histogram_stride = 8 + FENXI_BUFFERS * o->histogram_words;
    o->frames = fenxi_round(64 + 8 * o->fields, 512);
    o->histograms = fenxi_round(o->frames + FENXI_BUFFERS * o->frame_words, 512);
    o->reservoirs = fenxi_round(o->histograms + o->egresses * o->histogram_stride, 512);
    uint64_t words = fenxi_round(o->reservoirs + o->egresses * o->reservoir_stride, 512);
    const uint64_t expected[] = {
        words, 4096, 0, o->egresses, FENXI_BUFFERS, o->fields, 64, o->frames, o->frame_words,
        o->rows, o->row_words, o->histograms, o->histogram_stride, o->histogram_words,
        o->reservoirs, o->reservoir_stride,
    };
    for (uint64_t word = 2; word < 18; word++)
        if (word != 4 && fenxi_observe_word(o, word) != expected[word - 2])
            return FENXI_MALFORMED;
    return words > o->count ? FENXI_MALFORMED : FENXI_OK;
}

static inline void fenxi_observe_close(struct fenxi_observe *o)
{
    if (o->words)
        munmap((void *)(uintptr_t)o->words, o->count * 8);
    o->words = NULL;
}

/* Maps the file of a descriptor, which may be closed afterwards. */
static inline int fenxi_observe_map(struct fenxi_observe *o, int fd)
{
    struct stat status;
    memset(o, 0, sizeof *o);
    if (fstat(fd, &status))
        return FENXI_IO;
    if (status.st_size <= 0 || status.st_size % 8 || status.st_size > (1LL << 30))
        return FENXI_FOREIGN;
    void *words = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
        return FENXI_IO;
    o->words = words;
    o->count = status.st_size / 8;
    int checked = fenxi_observe_check(o);
    if (checked != FENXI_OK)
        fenxi_observe_close(o);
    return checked;
}

static inline int fenxi_observe_open(struct fenxi_observe *o, const char *path)
{
    memset(o, 0, sizeof *o);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FENXI_IO;
    int mapped = fenxi_observe_map(o, fd);
    close(fd);
    return mapped;
}

/* Whether nothing more will be written. A writer that was killed does not say so: then frame[1],
 * the time of publication, stands still. */
static inline int fenxi_observe_ended(const struct fenxi_observe *o)
{
    return fenxi_observe_word(o, 40) != 0;
}

static inline int fenxi_observe_field(const struct fenxi_observe *o, const char *name,
                                      enum fenxi_kind kind, struct fenxi_field *field)
{
    for (uint64_t index = 0; index < o->fields; index++) {
        fenxi_observe_record(o, index, field);
        if (field->kind == (uint64_t)kind && strcmp(field->name, name) == 0)
            return FENXI_OK;
    }
    return FENXI_MISSING;
}

/* Copies `words` words of a block's newest buffer, or fewer where `rows` limits them. */
static inline int fenxi_observe_block(const struct fenxi_observe *o, uint64_t published,
                                      uint64_t buffers, uint64_t buffer_words, int is_frame,
                                      uint64_t *to)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t number = fenxi_observe_word(o, published);
        atomic_thread_fence(memory_order_acquire);
        const _Atomic uint64_t *from = o->words + buffers + number % FENXI_BUFFERS * buffer_words;
        uint64_t words = buffer_words;
        int is_valid = 1;
        if (is_frame) {
            uint64_t used = atomic_load_explicit(&from[2], memory_order_relaxed);
            is_valid = used <= o->egresses;
            words = is_valid ? o->rows + used * o->row_words : 0;
        }
        for (uint64_t word = 0; word < words; word++)
            to[word] = atomic_load_explicit(&from[word], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (fenxi_observe_word(o, published) - number < FENXI_BUFFERS - 1) {
            /* The used rows might have changed between two loads only in a copy that is not whole. */
            if (is_frame && (!is_valid || to[2] > o->egresses))
                return FENXI_MALFORMED;
            return FENXI_OK;
        }
    }
    return FENXI_BUSY;
}

/* Copies all egresses with their counters and gauges as of one moment into o->frame_words words:
 * [0] generation, [1] time of publication (ns), [2] slots to look at. */
static inline int fenxi_observe_read(const struct fenxi_observe *o, uint64_t *frame)
{
    int read = fenxi_observe_block(o, 32, o->frames, o->frame_words, 1, frame);
    if (read != FENXI_OK)
        frame[2] = 0;
    return read;
}

/* The row of a slot in a frame; NULL where the slot has no egress. [0] incarnation, [1] kind in the
 * low and port in the high 32 bits, [2..4] the address's 16 bytes, then values by field.offset. */
static inline const uint64_t *fenxi_observe_row(const struct fenxi_observe *o,
                                                const uint64_t *frame, uint64_t slot)
{
    if (slot >= o->egresses || slot >= frame[2] || !(frame[8 + slot / 64] >> slot % 64 & 1))
        return NULL;
    return frame + o->rows + slot * o->row_words;
}

/* Copies the histograms of an egress into o->histogram_words words: [1] time of publication (ns), at
 * a field's offset the sum, then the buckets. */
static inline int fenxi_observe_histograms(const struct fenxi_observe *o, uint64_t slot,
                                           uint64_t incarnation, uint64_t *to)
{
    if (slot >= o->egresses || !incarnation)
        return FENXI_CHANGED;
    uint64_t region = o->histograms + slot * o->histogram_stride;
    int read = fenxi_observe_block(o, region, region + 8, o->histogram_words, 0, to);
    return read != FENXI_OK ? read : to[0] == incarnation ? FENXI_OK : FENXI_CHANGED;
}

/* Copies the samples of an egress in a field of kind reservoir or window, in no order, without those
 * that were being overwritten. Their number, at most FENXI_SAMPLES, or a status below 0. */
static inline int fenxi_observe_samples(const struct fenxi_observe *o, uint64_t slot,
                                        uint64_t incarnation, const struct fenxi_field *field,
                                        struct fenxi_sample *to)
{
    if ((field->kind != FENXI_RESERVOIR && field->kind != FENXI_WINDOW) || field->offset < 8 ||
        field->offset > o->reservoir_stride ||
        o->reservoir_stride - field->offset < 3 * FENXI_SAMPLES)
        return FENXI_MISSING;
    if (slot >= o->egresses || !incarnation)
        return FENXI_CHANGED;
    uint64_t region = o->reservoirs + slot * o->reservoir_stride;
    if (fenxi_observe_word(o, region) != incarnation)
        return FENXI_CHANGED;
    atomic_thread_fence(memory_order_acquire);
    int found = 0;
    for (uint64_t kept = 0; kept < FENXI_SAMPLES; kept++) {
        uint64_t place = region + field->offset + 3 * kept;
        for (int tries = 0; tries < 4; tries++) {
            uint64_t before = fenxi_observe_word(o, place);
            atomic_thread_fence(memory_order_acquire);
            uint64_t time_ns = fenxi_observe_word(o, place + 1);
            uint64_t value = fenxi_observe_word(o, place + 2);
            atomic_thread_fence(memory_order_acquire);
            if (before == fenxi_observe_word(o, place) && before && before % 2 == 0) {
                to[found++] = (struct fenxi_sample){before / 2, time_ns, value};
                break;
            }
        }
    }
    atomic_thread_fence(memory_order_acquire);
    return fenxi_observe_word(o, region) == incarnation ? found : FENXI_CHANGED;
}

/* Memory for weights and actions, mapped. */
struct fenxi_actions {
    _Atomic uint64_t *words;
    size_t count;
    uint64_t egresses;
    uint64_t actions;     /* the word where they begin; 0: none can be given */
    uint64_t kinds;       /* of actions that count: bit 0 a mark, bit 1 a DSCP, bit 2 a task */
    uint64_t image_words; /* of what is published */
};

/* An action of one kind; several are joined by |. */
static inline uint64_t fenxi_action_mark(uint32_t mark) { return 1 | (uint64_t)mark << 32; }
static inline uint64_t fenxi_action_dscp(uint8_t dscp) { return 2 | (uint64_t)dscp << 8; }
static inline uint64_t fenxi_action_task(uint8_t task) { return 4 | (uint64_t)task << 16; }

static inline void fenxi_actions_close(struct fenxi_actions *a)
{
    if (a->words)
        munmap((void *)(uintptr_t)a->words, a->count * 8);
    a->words = NULL;
}

/* Maps the file of a descriptor, which may be closed afterwards. */
static inline int fenxi_actions_map(struct fenxi_actions *a, int fd)
{
    static const char magic[8] = "FENXIACT";
    uint64_t expected_magic;
    struct stat status;
    memset(a, 0, sizeof *a);
    memcpy(&expected_magic, magic, 8);
    if (fstat(fd, &status))
        return FENXI_IO;
    if (status.st_size < 4096 || status.st_size % 8 || status.st_size > (1LL << 30))
        return FENXI_FOREIGN;
    void *words = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
        return FENXI_IO;
    a->words = words;
    a->count = status.st_size / 8;
    uint64_t head[7];
    for (int word = 0; word < 7; word++)
        head[word] = atomic_load_explicit(&a->words[word], memory_order_relaxed);
    a->egresses = head[3], a->actions = head[5], a->kinds = head[6];
    uint64_t behind = 24 + 3 * (8 + 2 * a->egresses) + 4 * a->egresses;
    int checked = head[0] != expected_magic ? FENXI_FOREIGN
                  : head[1] != 1            ? FENXI_VERSION
                  : a->egresses < 1 || a->egresses > FENXI_EGRESSES_MAX || behind > a->count ||
                          (a->actions && (a->actions != behind || behind + 3 * a->egresses > a->count))
                      ? FENXI_MALFORMED
                      : FENXI_OK;
    a->image_words = 8 + 3 * a->egresses;
    if (checked != FENXI_OK)
        fenxi_actions_close(a);
    return checked;
}

/* The directory's four words of an egress: its incarnation, then as in a row. */
static inline void fenxi_actions_egress(const struct fenxi_actions *a, uint64_t slot, uint64_t to[4])
{
    uint64_t place = 24 + 3 * (8 + 2 * a->egresses) + 4 * slot;
    for (int word = 0; word < 4; word++)
        to[word] = atomic_load_explicit(&a->words[place + word], memory_order_relaxed);
}

/* Sets what the next publication has for an egress, below a->egresses; action 0: none. */
static inline void fenxi_actions_set(const struct fenxi_actions *a, uint64_t *image, uint64_t slot,
                                     double weight, uint64_t action)
{
    uint64_t egress[4];
    fenxi_actions_egress(a, slot, egress);
    image[8 + 2 * slot] = egress[0];
    memcpy(&image[8 + 2 * slot + 1], &weight, 8);
    image[8 + 2 * a->egresses + slot] = action;
}

/* Says that this program lives; due several times in 0.8 s. */
static inline void fenxi_actions_beat(const struct fenxi_actions *a)
{
    uint64_t beat = atomic_load_explicit(&a->words[16], memory_order_relaxed) + 1;
    atomic_store_explicit(&a->words[16], beat ? beat : 1, memory_order_relaxed);
}

/* Makes the image known at once, valid until this time of CLOCK_MONOTONIC, and beats. */
static inline void fenxi_actions_publish(const struct fenxi_actions *a, uint64_t *image,
                                         uint64_t deadline_ns)
{
    uint64_t next = atomic_load_explicit(&a->words[8], memory_order_relaxed) + 1;
    uint64_t weights = 8 + 2 * a->egresses, buffer = next % FENXI_BUFFERS;
    image[0] = deadline_ns;
    atomic_thread_fence(memory_order_release);
    for (uint64_t word = 0; word < weights; word++)
        atomic_store_explicit(&a->words[24 + buffer * weights + word], image[word],
                              memory_order_relaxed);
    for (uint64_t slot = 0; a->actions && slot < a->egresses; slot++)
        atomic_store_explicit(&a->words[a->actions + buffer * a->egresses + slot],
                              image[weights + slot], memory_order_relaxed);
    atomic_store_explicit(&a->words[8], next, memory_order_release);
    fenxi_actions_beat(a);
}

#endif
