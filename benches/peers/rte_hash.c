/* DPDK's rte_hash as a flow table, driven by scripts/bench-peers as main.rs is:
 *
 *     rte_hash EAL-OPTIONS -- ENTRIES FLOWS LOOK_UPS SEED
 *
 * then lines "rte_hash BURST" on standard input, each answered by the ns that a round
 * took and how many look-ups found their flow. Flows and look-ups are those of
 * traffic.rs.
 *
 * Used as its users do at best: keys of 48 bytes, for which it has a comparison of its
 * own and a slot of one cache line; their hashes computed before the round; a bulk
 * look-up that prefetches; what is counted in an array beside, prefetched after the
 * look-up of the burst. */

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_hash.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_prefetch.h>

#define LENGTH 64 /* bytes counted at a look-up */
#define SECOND 1  /* in which it is said to happen */
#define PICKS 0x70656572735f7069

/* As flowmgr's key: addresses of both families, ports, protocol and family. */
struct key {
	uint64_t low[2], high[2];
	uint32_t ports;
	uint8_t kind, zero[11];
};

_Static_assert(sizeof(struct key) == 48, "a size that rte_hash compares by itself");

struct flow {
	uint64_t bytes;
	uint32_t packets;
	uint16_t stamp;
};

struct table {
	struct rte_hash *hash;
	struct flow *flows;
};

struct round {
	struct key *keys;
	hash_sig_t *hashes;
	uint64_t length;
};

static uint64_t entries, flows, seed;

static void
stop(const char *what)
{
	fprintf(stderr, "rte_hash: %s\n", what);
	exit(1);
}

static uint64_t
random_of(uint64_t from, uint64_t i)
{
	uint64_t bits = from + (i + 1) * 0x9e3779b97f4a7c15;

	bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
	bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
	return bits ^ bits >> 31;
}

static struct key
key_of(uint64_t flow)
{
	uint64_t addresses = random_of(seed, 2 * flow), rest = random_of(seed, 2 * flow + 1);
	struct key key = {
		.low = { addresses >> 32 },
		.high = { addresses & UINT32_MAX },
		.ports = rest >> 32,
		.kind = rest & 1,
	};

	return key;
}

static uint64_t
flow_of(uint64_t packet)
{
	return (random_of(seed ^ PICKS, packet) >> 32) * flows >> 32;
}

static struct table
fill(void)
{
	struct rte_hash_parameters parameters = {
		.name = "flows",
		.entries = entries,
		.key_len = sizeof(struct key),
		.socket_id = rte_socket_id(),
	};
	struct table table = { .hash = rte_hash_create(&parameters) };

	if (table.hash == NULL)
		stop(rte_strerror(rte_errno));
	table.flows = rte_zmalloc("counts", flows * sizeof(struct flow), RTE_CACHE_LINE_SIZE);
	if (table.flows == NULL)
		stop("no memory for the flows");
	for (uint64_t i = 0; i < flows; i++) {
		struct key key = key_of(i);

		if (rte_hash_add_key_data(table.hash, &key, &table.flows[i]) != 0)
			stop("a flow finds no room");
	}
	return table;
}

static struct round
prepare(const struct rte_hash *hash, uint64_t length)
{
	struct round round = {
		.keys = aligned_alloc(64, length * sizeof(struct key)),
		.hashes = calloc(length, sizeof(hash_sig_t)),
		.length = length,
	};
	uint64_t checksum = 0;

	if (round.keys == NULL || round.hashes == NULL)
		stop("no memory for the look-ups");
	for (uint64_t i = 0; i < length; i++) {
		uint64_t flow = flow_of(i);

		round.keys[i] = key_of(flow);
		round.hashes[i] = rte_hash_hash(hash, &round.keys[i]);
		checksum = (checksum << 1 | checksum >> 63) ^ random_of(seed, 2 * flow)
			 ^ random_of(seed, 2 * flow + 1);
	}
	printf("ready %016" PRIx64 "\n", checksum);
	return round;
}

static inline uint64_t
look_up(const struct table *table, const struct key *keys, hash_sig_t *hashes, unsigned int burst)
{
	const void *wanted[RTE_HASH_LOOKUP_BULK_MAX];
	void *found[RTE_HASH_LOOKUP_BULK_MAX];
	uint64_t hits = 0;

	for (unsigned int i = 0; i < burst; i++)
		wanted[i] = &keys[i];
	rte_hash_lookup_with_hash_bulk_data(table->hash, wanted, hashes, burst, &hits, found);
	for (unsigned int i = 0; i < burst; i++)
		if (hits >> i & 1)
			rte_prefetch0(found[i]);
	for (unsigned int i = 0; i < burst; i++) {
		struct flow *flow = found[i];

		if (!(hits >> i & 1))
			continue;
		flow->stamp = SECOND;
		flow->packets++;
		flow->bytes += LENGTH;
	}
	return __builtin_popcountll(hits);
}

static uint64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

static void
answer(const struct table *table, const struct round *round, unsigned int burst)
{
	uint64_t begin = now_ns(), found = 0;

	for (uint64_t i = 0; i < round->length; i += burst) {
		unsigned int count = RTE_MIN(round->length - i, (uint64_t)burst);

		found += look_up(table, &round->keys[i], &round->hashes[i], count);
	}
	printf("%" PRIu64 " %" PRIu64 "\n", now_ns() - begin, found);
}

int
main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	struct table table;
	struct round round;
	unsigned int burst;

	if (used < 0)
		stop(rte_strerror(rte_errno));
	if (argc - used != 5)
		stop("run by scripts/bench-peers, not alone");
	entries = strtoull(argv[used + 1], NULL, 10);
	flows = strtoull(argv[used + 2], NULL, 10);
	seed = strtoull(argv[used + 4], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	table = fill();
	round = prepare(table.hash, strtoull(argv[used + 3], NULL, 10));
	while (scanf("rte_hash %u\n", &burst) == 1) {
		if (burst == 0 || burst > RTE_HASH_LOOKUP_BULK_MAX)
			stop("a burst is 1 to 64");
		answer(&table, &round, burst);
	}
	rte_hash_free(table.hash);
	return rte_eal_cleanup() == 0 ? 0 : 1;
}
