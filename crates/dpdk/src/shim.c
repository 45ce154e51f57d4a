/* Functions around what is inline in DPDK's headers, a burst at a time where it matters. */
#include "shim.h"

#include <string.h>

#include <rte_ether.h>

static void describe(const struct rte_mbuf *m, struct fenxi_frame *frame)
{
	frame->data = rte_pktmbuf_mtod(m, uint8_t *);
	frame->length = m->pkt_len;
	frame->rss = m->hash.rss;
	frame->has_rss = (m->ol_flags & RTE_MBUF_F_RX_RSS_HASH) != 0;
	frame->is_plain = m->nb_segs == 1 && rte_mbuf_refcnt_read(m) == 1 &&
		!(m->ol_flags & (RTE_MBUF_F_RX_VLAN_STRIPPED | RTE_MBUF_F_RX_QINQ_STRIPPED));
}

uint16_t fenxi_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, struct fenxi_frame *frames, uint16_t n)
{
	uint16_t received = rte_eth_rx_burst(port, queue, mbufs, n);

	for (uint16_t i = 0; i < received; i++)
		describe(mbufs[i], &frames[i]);
	return received;
}

uint16_t fenxi_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	uint16_t sent = 0;

	/* A driver may take fewer than it has room for in one call. */
	while (sent < n) {
		uint16_t taken = rte_eth_tx_burst(port, queue, mbufs + sent, n - sent);

		if (taken == 0)
			break;
		sent += taken;
	}
	return sent;
}

void fenxi_share(struct rte_mbuf **mbufs, uint16_t n)
{
	for (uint16_t i = 0; i < n; i++)
		rte_mbuf_refcnt_update(mbufs[i], 1);
}

struct rte_mbuf *fenxi_gather(struct rte_mbuf *from, struct rte_mempool *pool, struct fenxi_frame *frame)
{
	const uint32_t addresses = 2 * RTE_ETHER_ADDR_LEN;
	uint32_t tag = from->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED && from->pkt_len >= addresses ? sizeof(struct rte_vlan_hdr) : 0;
	uint32_t length = from->pkt_len + tag;
	struct rte_mbuf *to = length > UINT16_MAX ? NULL : rte_pktmbuf_alloc(pool);
	uint8_t *data = to ? (uint8_t *)rte_pktmbuf_append(to, length) : NULL;

	if (data) {
		uint8_t *at = data;

		for (const struct rte_mbuf *part = from; part; part = part->next) {
			memcpy(at, rte_pktmbuf_mtod(part, const uint8_t *), part->data_len);
			at += part->data_len;
		}
		if (tag) {
			rte_be16_t header[2] = { rte_cpu_to_be_16(RTE_ETHER_TYPE_VLAN), rte_cpu_to_be_16(from->vlan_tci) };

			memmove(data + addresses + tag, data + addresses, length - addresses - tag);
			memcpy(data + addresses, header, tag);
		}
		to->hash.rss = from->hash.rss;
		to->ol_flags |= from->ol_flags & RTE_MBUF_F_RX_RSS_HASH;
		describe(to, frame);
	} else if (to) {
		rte_pktmbuf_free(to);
		to = NULL;
	}
	rte_pktmbuf_free(from);
	return to;
}

struct rte_mbuf *fenxi_copy(struct rte_mempool *pool, const uint8_t *data, uint32_t length)
{
	struct rte_mbuf *to = length > UINT16_MAX ? NULL : rte_pktmbuf_alloc(pool);
	char *at = to ? rte_pktmbuf_append(to, length) : NULL;

	if (at) {
		memcpy(at, data, length);
	} else if (to) {
		rte_pktmbuf_free(to);
		to = NULL;
	}
	return to;
}

int fenxi_errno(void)
{
	return rte_errno;
}

int fenxi_log_to(ssize_t (*write)(void *cookie, const char *text, size_t length))
{
	cookie_io_functions_t functions = { .write = write };
	FILE *stream = fopencookie(NULL, "w", functions);

	if (!stream)
		return -1;
	setvbuf(stream, NULL, _IOLBF, 0);
	return rte_openlog_stream(stream);
}

void fenxi_flush(void)
{
	fflush(stdout);
}

uint64_t fenxi_rss_types(void)
{
	return RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
}

uint64_t fenxi_rss_offload(void)
{
	return RTE_ETH_RX_OFFLOAD_RSS_HASH;
}
