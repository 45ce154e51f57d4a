/* What Rust calls of DPDK: its headers, and functions around those that are inline in C. */
#ifndef FENXI_DPDK_SHIM_H
#define FENXI_DPDK_SHIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <sys/types.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_memzone.h>

/* A received packet, as Rust sees it. */
struct fenxi_frame {
	/* First byte of the packet. */
	uint8_t *data;
	/* Bytes of the packet, in all its segments. */
	uint32_t length;
	/* The hash that the device computed, if has_rss. */
	uint32_t rss;
	uint8_t has_rss;
	/* One segment, nobody else holds it, and all bytes of the wire are in place. */
	uint8_t is_plain;
};

/* Receives up to n packets and describes them. Returns how many. */
uint16_t fenxi_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, struct fenxi_frame *frames, uint16_t n);

/* Sends n packets; what is sent belongs to the device. Returns how many it took. */
uint16_t fenxi_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);

/* One more holder for each. */
void fenxi_share(struct rte_mbuf **mbufs, uint16_t n);

/* A copy of a packet in one buffer of the pool, with a VLAN tag that the device took out put back, and its description; NULL if
   it is too long or no buffer is free. The packet itself is freed in any case. */
struct rte_mbuf *fenxi_gather(struct rte_mbuf *from, struct rte_mempool *pool, struct fenxi_frame *frame);

/* A packet of these bytes in a buffer of the pool; NULL if it is too long or no buffer is free. */
struct rte_mbuf *fenxi_copy(struct rte_mempool *pool, const uint8_t *data, uint32_t length);

/* rte_errno, which is a variable of the thread. */
int fenxi_errno(void);

/* Hands each line of DPDK's log to a function. Returns 0, or -1 if there is no memory. */
int fenxi_log_to(ssize_t (*write)(void *cookie, const char *text, size_t length));

/* Writes out what C has printed to standard output and still holds. */
void fenxi_flush(void);

/* Kinds of packets whose addresses and ports are hashed. */
uint64_t fenxi_rss_types(void);
/* Whether the device can put the hash into the packet's description, as an offload. */
uint64_t fenxi_rss_offload(void);

#endif
