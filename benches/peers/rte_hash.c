/* DPDK's rte_hash as a flow table, driven by figures/peers.py as main.rs is:
 *
 *     rte_hash EAL-OPTIONS -- ENTRIES FLOWS LOOK_UPS SEED
 *
 * then lines "TABLE BURST" on standard input, each answered by the ns that a round took
 * and how many look-ups found their flow. Flows and look-ups are those of traffic.rs.
 *
 * Table "rte_hash" has keys of 40 bytes, what ours has. "rte_hash-padded" has them
 * padded to 48, for which rte_hash has a comparison of its own and a slot of one cache
 * line: the best that was found. Both are used as their users do: hashes of the keys
 * computed before the round; a bulk look-up, which prefetches; the counters in an array
 * beside, prefetched when the look-up of the burst is done. */

#include <inttypes.h>
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

_Static_assert(sizeof(struct key) == 48, "40 bytes and padding");

struct flow {
	uint64_t bytes;
	uint32_t packets;
	uint16_t stamp;
};

/* The look-ups of a round. */
struct round {
	struct key *keys;
	uint64_t length;
};

struct table {
	const char *name;
	uint32_t key_length;
	struct rte_hash *hash;
	/* Of the round's keys. */
	hash_sig_t *hashes;
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

static struct round
prepare(uint64_t length)
{
	struct round round = {
		.keys = aligned_alloc(64, length * sizeof(struct key)),
		.length = length,
	};
	uint64_t checksum = 0;

	if (round.keys == NULL)
		stop("no memory for the look-ups");
	for (uint64_t i = 0; i < length; i++) {
		uint64_t flow = flow_of(i);

		round.keys[i] = key_of(flow);
		checksum = (checksum << 1 | checksum >> 63) ^ random_of(seed, 2 * flow)
			 ^ random_of(seed, 2 * flow + 1);
	}
	printf("ready %016" PRIx64 "\n", checksum);
	return round;
}

static void
fill(struct table *table, struct flow *counts, const struct round *round)
{
	struct rte_hash_parameters parameters = {
		.name = table->name,
		.entries = entries,
		.key_len = table->key_length,
		.socket_id = rte_socket_id(),
	};

	table->hash = rte_hash_create(&parameters);
	table->hashes = calloc(round->length, sizeof(hash_sig_t));
	if (table->hash == NULL || table->hashes == NULL)
		stop("no memory for the table");
	for (uint64_t i = 0; i < flows; i++) {
		struct key key = key_of(i);

		if (rte_hash_add_key_data(table->hash, &key, &counts[i]) != 0)
			stop("a flow finds no room");
	}
	for (uint64_t i = 0; i < round->length; i++)
		table->hashes[i] = rte_hash_hash(table->hash, &round->keys[i]);
}

static inline uint64_t
look_up(const struct rte_hash *hash, const struct key *keys, hash_sig_t *hashes, unsigned int burst)
{
	const void *wanted[RTE_HASH_LOOKUP_BULK_MAX];
	void *found[RTE_HASH_LOOKUP_BULK_MAX];
	uint64_t hits = 0;

	for (unsigned int i = 0; i < burst; i++)
		wanted[i] = &keys[i];
	rte_hash_lookup_with_hash_bulk_data(hash, wanted, hashes, burst, &hits, found);
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

		found += look_up(table->hash, &round->keys[i], &table->hashes[i], count);
	}
	printf("%" PRIu64 " %" PRIu64 "\n", now_ns() - begin, found);
}

int
main(int argc, char **argv)
{
	struct table tables[] = {
		{ .name = "rte_hash", .key_length = 40 },
		{ .name = "rte_hash-padded", .key_length = 48 },
	};
	int used = rte_eal_init(argc, argv);
	char name[32];
	unsigned int burst;
	struct round round;
	struct flow *counts;

	if (used < 0)
		stop(rte_strerror(rte_errno));
	if (argc - used != 5)
		stop("run by figures/peers.py, not alone");
	entries = strtoull(argv[used + 1], NULL, 10);
	flows = strtoull(argv[used + 2], NULL, 10);
	seed = strtoull(argv[used + 4], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	round = prepare(strtoull(argv[used + 3], NULL, 10));
	counts = rte_zmalloc("counts", flows * sizeof(struct flow), RTE_CACHE_LINE_SIZE);
	if (counts == NULL)
		stop("no memory for the counters");
	for (size_t i = 0; i < RTE_DIM(tables); i++)
		fill(&tables[i], counts, &round);
	while (scanf("%31s %u", name, &burst) == 2) {
		if (burst == 0 || burst > RTE_HASH_LOOKUP_BULK_MAX)
			stop("a burst is 1 to 64");
		for (size_t i = 0; i < RTE_DIM(tables); i++)
			if (strcmp(name, tables[i].name) == 0)
				answer(&tables[i], &round, burst);
	}
	return rte_eal_cleanup() == 0 ? 0 : 1;
}
