// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// The network in the kernel: the integers of crates/engine, equal to its answers to the bit. Its
// src/integers.rs says what each formula means, and its src/kernel.rs writes what is read here.
//
// A network is an array of blocks: the first begins with a `struct net`, the others hold rows of
// tables. It is one element of `nets`, so one update replaces it, and a packet sees either network,
// never parts of both.
//
// Two weights of 12 bits share a word of 64: their products with an activation add up side by side,
// exactly, for sums have 32 bits. So do four numbers of layer 0, whose sums have 16. The verifier
// follows each branch, so clamps have none; `HIDE` keeps the compiler from making some again.
// CAP_PERFMON is needed, because indices come from tables.

#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define PLACES 12
#define WIDTH 96     // activations of a layer, at most
#define CHUNK 16     // inputs that are multiplied in one go
#define GROUP 8      // outputs that are summed in one go
#define LAYERS 3     // behind the first
#define WEIGHTS 6144 // words of two weights
#define LENGTHS 4096
#define CLASSES 64
#define CONTEXTS 2
#define TREES 64
#define LEVELS 64 // of a tree
#define BLOCK 65536
#define ROW 256 // bytes of the longest row; a block is so much longer, for the verifier

// What the network is asked about a flow.
struct question {
	__s32 lengths[PLACES];   // negative: against the direction of the flow's first packet
	__u32 gaps_us[PLACES];   // time since the packet before
	__u32 elements;          // lengths and gaps; those beyond are 0
	__u32 is_tcp;            // else UDP
	__u32 server_port;
	__u32 place;             // the network's, in `nets`
};

// A function of a number of the context, as rows. A position counts the bytes of all blocks.
struct table {
	__u32 column;  // 0: IP protocol, 1: server's port
	__u32 last;    // larger numbers count as this one
	__u32 numbers; // position of the row's number, 16 bits, of each number of the context
	__u32 rows;    // position of row 0
	__u32 shift;   // log2 of a row's bytes
};

// Each output: (Σ input·weight + bias) >> shift; between layers an activation, from 0 to 4095.
struct layer {
	__u32 weights;     // where in `net.weights` it begins
	__u32 chunks;      // of inputs
	__u32 groups;      // of outputs
	__u32 group_words; // words of a group: chunk by chunk, input by input, `GROUP` outputs
	__s64 bias[WIDTH];
	__u32 shift[WIDTH];
};

// What both kinds begin with.
struct head {
	__u32 generation;
	__u32 is_forest;
	__u32 places;
	__u32 classes;
};

struct net {
	struct head head;
	__u32 chunks; // of layer 0's outputs
	__u32 layers; // behind layer 0; the last makes scores
	__s32 low;    // the lengths of `codes`; others count as the nearest
	__s32 high;
	// Position of place 0's rows, one per code. Behind the last place's, there is a row for
	// each number of elements: the sum of what the places behind them add.
	__u32 tables;
	__u32 table_bytes; // of a place
	__u32 shift;       // log2 of a row's bytes
	__u32 contexts;
	struct table context[CONTEXTS]; // rows as of the places
	struct table scores;            // rows of 32-bit numbers
	__u32 temperatures[PLACES + 1]; // by depth
	__u16 codes[LENGTHS];
	struct layer layer[LAYERS];
	__u64 weights[WEIGHTS];
};

// Decision trees. A node has 64 bits, from the lowest on:
//   of a split: 32 the least key that goes above, 24 the node below, in front of the one above,
//               7 which key; 1 that is 0
//   of a leaf:  32 its row of steps, which are added to the classes' sums; the last bit is 1
// A tree's nodes are in one block, and nodes are counted from its beginning.
struct forest {
	struct head head;
	__u32 trees;
	__u32 steps;                    // position of the leaves' rows, one 16-bit number per class
	__u32 shift;                    // log2 of a row's bytes
	__u32 chunks;                   // of a row
	__u32 roots[TREES];             // positions
	__u32 exponentials[PLACES + 1]; // by depth, position of each sum's exponential: floats
};

// Four 16-bit numbers to a word.
struct row {
	__u64 words[WIDTH / 4];
};

struct block {
	__u64 words[(BLOCK + ROW) / 8];
};

// Behind a network, its first block holds what others keep with it.
#define BESIDE (60 * 1024)

_Static_assert(sizeof(struct net) <= BESIDE, "a network's numbers fit into its first block");

struct blocks {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP); // each network has as many as it needs
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct block));
};

// At `CURRENT` is the network in use, and behind it those of the last `EDITIONS` editions, this one
// included.
#define CURRENT 0
#define EDITIONS 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1 + EDITIONS);
	__uint(key_size, 4);
	__array(values, struct blocks);
} nets SEC(".maps");

// Trees read numbers as keys, unsigned: lengths, gaps, protocol, server's port.
#define KEYS (2 * PLACES + 2)
// The largest key; one more is above every threshold. A float does not tell it from the next.
#define KEY_MAX 0xfffffffe

// Numbers between layers, of the packet that a CPU is at; the stack has no room for them.
struct scratch {
	struct row sums;
	__u32 keys[32]; // KEYS, as a power of two
	// What the layers of even and of odd numbers read. A power of two, for the compiler joins
	// indices by `|`, and then the verifier rounds them up to one.
	union {
		__u64 words[32];
		__u16 numbers[128];
	} activations[2];
	__s32 scores[128];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

#define HIDE(number) asm volatile("" : "+r"(number))
#define UNROLL _Pragma("clang loop unroll(full)")
#define KEEP_LOOP _Pragma("clang loop unroll(disable)")

static __always_inline __s64 at_least(__s64 number, __s64 low)
{
	__s64 below = number - low, sign = below >> 63;
	HIDE(sign);
	return low + (below & ~sign);
}

static __always_inline __s64 at_most(__s64 number, __s64 high)
{
	__s64 below = number - high, sign = below >> 63;
	HIDE(sign);
	return high + (below & sign);
}

// (a·b + 2¹⁴) >> 15
static __always_inline __s64 q15(__s64 a, __s64 b) { return (a * b + (1 << 14)) >> 15; }

// The bytes at a position, which `align` divides.
static __always_inline const void *find(void *blocks, __u32 position, __u32 align)
{
	__u32 number = position / BLOCK, offset = position & (BLOCK - align);
	const struct block *block = bpf_map_lookup_elem(blocks, &number);
	return block ? (const __u8 *)block + offset : 0;
}

static __always_inline __u32 protocol_of(const struct question *question)
{
	return question->is_tcp ? 6 : 17;
}

// How many of the first lengths are not 0.
static __always_inline __u32 depth_of(const struct question *question, __u32 places)
{
	__u32 depth = 0;
	KEEP_LOOP
	for (__u32 p = 0; p < PLACES && p < places; p++) {
		__s64 length = question->lengths[p], sign = length | -length;
		HIDE(sign);
		depth += (__u64)sign >> 63;
	}
	return depth;
}

// The row of a number of the context.
static __always_inline const void *row_of(void *blocks, const struct table *table,
					  const struct question *question)
{
	__u32 number = table->column ? question->server_port & 0xffff : protocol_of(question);
	number = at_most(number, table->last);
	const __u16 *row = find(blocks, table->numbers + 2 * number, 2);
	return row ? find(blocks, table->rows + ((__u32)*row << table->shift), 8) : 0;
}

// Inner loops that may end early are in functions that are not `static`, which the verifier checks
// once and alone: it keeps few states of a loop, and would not know that it has seen what comes
// after one. Others are not inlined, so that they share the stack, of which `ask` takes 112 bytes.

// Adds a row to layer 0's sums.
__noinline int add_row(const struct row *row, struct row *sums, __u32 chunks)
{
	if (!row || !sums)
		return 0;
	KEEP_LOOP
	for (__u32 c = 0; c < WIDTH / CHUNK && c < chunks; c++) {
		UNROLL
		for (int i = 0; i < CHUNK / 4; i++)
			sums->words[c * (CHUNK / 4) + i] += row->words[c * (CHUNK / 4) + i];
	}
	return 1;
}

#define LANES(number) (0x0001000100010001ull * (number))

// Four sums of layer 0, bounded from 0 to 4095.
static __always_inline __u64 activations_of(__u64 sums)
{
	// Now no lane borrows from the next.
	__u64 biased = sums + LANES(0x8000);
	__u64 is_positive = biased >> 15 & LANES(1);
	__u64 numbers = biased & LANES(0x7fff) & is_positive * 0xffff;
	__u64 is_over = (numbers + LANES(0x7fff - 4095)) >> 15 & LANES(1);
	return (numbers | is_over * 0xffff) & LANES(4095);
}

// Layer 0: adds a row for each element, one for those that are not there, and one for each number
// of the context.
static __noinline int first_layer(void *blocks, const struct net *net,
				       const struct question *question, struct scratch *scratch)
{
	__u32 places = net->head.places, elements = at_most(question->elements, places);
	UNROLL
	for (int i = 0; i < WIDTH / 4; i++)
		scratch->sums.words[i] = 0;
	KEEP_LOOP
	for (__u32 p = 0; p < PLACES && p < elements; p++) {
		__s64 length = at_most(at_least(question->lengths[p], net->low), net->high);
		__u32 code = net->codes[(length - net->low) & (LENGTHS - 1)];
		__u32 at = net->tables + p * net->table_bytes + (code << net->shift);
		const struct row *row = find(blocks, at, 8);
		if (!row || !add_row(row, &scratch->sums, net->chunks))
			return 0;
	}
	__u32 at = net->tables + places * net->table_bytes + (elements << net->shift);
	const struct row *row = find(blocks, at, 8);
	if (!row || !add_row(row, &scratch->sums, net->chunks))
		return 0;
	KEEP_LOOP
	for (__u32 i = 0; i < CONTEXTS && i < net->contexts; i++) {
		row = row_of(blocks, &net->context[i], question);
		if (!row || !add_row(row, &scratch->sums, net->chunks))
			return 0;
	}
	UNROLL
	for (int i = 0; i < WIDTH / 4; i++)
		scratch->activations[0].words[i] = activations_of(scratch->sums.words[i]);
	return 1;
}

// A group of a layer's outputs: activations, or of the last layer scores.
__noinline int group(const struct net *net, struct scratch *scratch, __u32 number, __u32 g)
{
	if (!net || !scratch)
		return 0;
	number &= 3; // so that the verifier knows bounds, within which all indices are in `net`
	g &= 15;
	HIDE(number);
	HIDE(g);
	const struct layer *layer = &net->layer[number];
	const __u16 *from = scratch->activations[number & 1].numbers;
	__u64 a = 0, b = 0, c = 0, d = 0;
	__u32 at = layer->weights + g * layer->group_words;
	KEEP_LOOP
	for (__u32 chunk = 0; chunk < WIDTH / CHUNK && chunk < layer->chunks; chunk++) {
		if (at > WEIGHTS - CHUNK * GROUP / 2)
			return 0;
		HIDE(at); // Else the address would be made before its bound is checked.
		const __u64 *weights = &net->weights[at];
		at += CHUNK * GROUP / 2;
		UNROLL
		for (int i = 0; i < CHUNK; i++) {
			__u64 input = from[chunk * CHUNK + i];
			a += weights[4 * i] * input;
			b += weights[4 * i + 1] * input;
			c += weights[4 * i + 2] * input;
			d += weights[4 * i + 3] * input;
			// Else all loads would come first, for which the stack has no room.
			asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d)::"memory");
		}
	}
	// One of the two that are written is read. In memory, the loop needs no stack.
	__u64 *sums = scratch->sums.words;
	sums[0] = a;
	sums[1] = b;
	sums[2] = c;
	sums[3] = d;
	__u16 *to = scratch->activations[~number & 1].numbers;
	__u32 output = g * GROUP;
	KEEP_LOOP
	for (int i = 0; i < GROUP / 2; i++) {
		__s64 low = (__s64)(sums[i] << 32) >> 32, high = (__s64)(sums[i] - low) >> 32;
		low = (low + layer->bias[output]) >> layer->shift[output];
		high = (high + layer->bias[output + 1]) >> layer->shift[output + 1];
		scratch->scores[output] = low;
		scratch->scores[output + 1] = high;
		to[output] = at_most(at_least(low, 0), 4095);
		to[output + 1] = at_most(at_least(high, 0), 4095);
		output += 2;
	}
	return 1;
}

// A number and its class, in an order in which of equal numbers the first class is the largest.
static __always_inline __s64 order(__s64 number, __u32 class)
{
	return number << 6 | (CLASSES - 1 - class);
}

static __always_inline __u64 class_of(__s64 order) { return CLASSES - 1 - (order & (CLASSES - 1)); }

// Class and confidence by the last layer's numbers.
static __noinline __s64 softmax(void *blocks, const struct net *net,
				      const struct question *question, __s32 *scores)
{
	__s64 best = -(1ll << 40); // below all scores
	const __s32 *row = row_of(blocks, &net->scores, question);
	if (!row)
		return -1;
	KEEP_LOOP
	for (__u32 i = 0; i < CLASSES && i < net->head.classes; i++) {
		__s64 score = scores[i] + (__s64)row[i];
		scores[i] = score;
		best = at_least(best, order(score, i));
	}
	__s64 largest = best >> 6;
	__s64 temperature = net->temperatures[depth_of(question, net->head.places)];
	__u64 sum = 0;
	KEEP_LOOP
	for (__u32 i = 0; i < CLASSES && i < net->head.classes; i++) {
		__s64 t = q15(at_most(largest - scores[i], 32767), temperature);
		__s64 fraction = (t & 2047) << 4;
		__s64 e = q15(fraction, -1295) + 7556;
		e = q15(fraction, e) - 22645;
		e = q15(fraction, e) + 32767;
		sum += (__u64)e >> (t >> 11 & 15);
	}
	return sum ? class_of(best) | (32767ull << 15) / sum << 16 : -1;
}

// Follows a tree from a node of its block to a leaf; the leaf's row.
__noinline int walk(const struct block *block, const struct scratch *scratch, __u32 at)
{
	if (!block || !scratch)
		return 0;
	KEEP_LOOP
	for (__u32 level = 0; level < LEVELS; level++) {
		__u64 node = block->words[at & (BLOCK / 8 - 1)];
		if (node >> 63)
			return node;
		__s64 over = (__s64)scratch->keys[node >> 56 & 31] - (__u32)node, sign = over >> 63;
		HIDE(sign);
		at = (node >> 32) + 1 + sign;
	}
	return 0;
}

// Class and confidence by the sums of steps.
static __noinline __s64 shares(void *blocks, const struct forest *forest,
				    const struct question *question, struct scratch *scratch)
{
	__s32 *exponentials = scratch->scores;
	__u32 depth = depth_of(question, forest->head.places);
	__u32 position = forest->exponentials[depth], number = position / BLOCK;
	const struct block *block = bpf_map_lookup_elem(blocks, &number);
	if (!block)
		return -1;
	__s64 best = 0;
	KEEP_LOOP
	for (__u32 i = 0; i < CLASSES && i < forest->head.classes; i++) {
		__u32 sum = scratch->sums.words[i / 4] >> i % 4 * 16 & 0xffff;
		__u32 at = (position + 4 * sum) & (BLOCK - 4);
		// The bits of positive floats are in their order.
		__u32 bits = *(const __u32 *)((const __u8 *)block + at);
		exponentials[i] = bits;
		best = at_least(best, order(bits, i));
	}
	__u64 largest = best >> 6, total = 0;
	KEEP_LOOP
	for (__u32 i = 0; i < CLASSES && i < forest->head.classes; i++) {
		__u64 bits = (__u32)exponentials[i];
		__u64 mantissa = (bits & 0x7fffff) | 0x800000;
		total += mantissa << 20 >> at_most((largest >> 23) - (bits >> 23), 63);
	}
	if (!total)
		return -1;
	__u64 share = ((largest & 0x7fffff) | 0x800000) << 20;
	return class_of(best) | ((share << 15) + total / 2) / total << 16;
}

static __noinline __s64 ask_forest(void *blocks, const struct forest *forest,
					const struct question *question, struct scratch *scratch)
{
	UNROLL
	for (int p = 0; p < PLACES; p++) {
		__u32 length = question->lengths[p] ^ 0x80000000;
		scratch->keys[p] = at_most(length, KEY_MAX);
		scratch->keys[PLACES + p] = at_most(question->gaps_us[p], KEY_MAX);
	}
	scratch->keys[2 * PLACES] = protocol_of(question);
	scratch->keys[2 * PLACES + 1] = question->server_port & 0xffff;
	UNROLL
	for (int i = 0; i < CLASSES / 4; i++)
		scratch->sums.words[i] = 0;
	KEEP_LOOP
	for (__u32 i = 0; i < TREES && i < forest->trees; i++) {
		__u32 root = forest->roots[i], number = root / BLOCK;
		const struct block *block = bpf_map_lookup_elem(blocks, &number);
		if (!block)
			return -1;
		__u32 leaf = walk(block, scratch, root % BLOCK / 8);
		const struct row *row = find(blocks, forest->steps + (leaf << forest->shift), 8);
		if (!row || !add_row(row, &scratch->sums, forest->chunks))
			return -1;
	}
	return shares(blocks, forest, question, scratch);
}

static __always_inline __s64 ask_net(void *blocks, const struct net *net,
				     const struct question *question, struct scratch *scratch)
{
	if (!first_layer(blocks, net, question, scratch))
		return -1;
	KEEP_LOOP
	for (__u32 i = 0; i < LAYERS && i < net->layers; i++) {
		KEEP_LOOP
		for (__u32 g = 0; g < WIDTH / GROUP && g < net->layer[i].groups; g++)
			group(net, scratch, i, g);
	}
	return softmax(blocks, net, question, scratch->scores);
}

// Asks a network: class | confidence in Q15 << 16 | generation << 32, or -1 if there is none.
__noinline long ask(struct question *question)
{
	__u32 zero = 0;
	if (!question)
		return -1;
	__u32 place = question->place;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	void *blocks = bpf_map_lookup_elem(&nets, &place);
	if (!blocks || !scratch)
		return -1;
	const struct head *head = bpf_map_lookup_elem(blocks, &zero);
	if (!head)
		return -1;
	__s64 answer = head->is_forest ?
			       ask_forest(blocks, (const struct forest *)head, question, scratch) :
			       ask_net(blocks, (const struct net *)head, question, scratch);
	return answer < 0 ? -1 : answer | (__u64)head->generation << 32;
}
