// Which frames of an interface go to the sockets of the backend af_xdp, and which to the kernel.
//
// Built by `make bpf`; the object is committed, so that a build needs no clang. Nothing is relocated against
// the kernel's types, and the maps are described without BTF, so the object loads where the kernel has none.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// As in linux/bpf.h.
struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
enum { XDP_PASS = 2 };
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_XSKMAP = 17 };
struct bpf_map_def {
    u32 type, key_size, value_size, max_entries, map_flags;
};
static void *(*lookup)(void *map, const void *key) = (void *)1;
static long (*redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

// The socket of each queue.
struct bpf_map_def SEC("maps") sockets = {
    .type = BPF_MAP_TYPE_XSKMAP,
    .key_size = 4,
    .value_size = 4,
    .max_entries = 64, // the loader sets it
};

// An address of this machine; of IPv4 as ::ffff:a.b.c.d.
struct address {
    u32 words[4];
};
struct bpf_map_def SEC("maps") hosts = {
    .type = BPF_MAP_TYPE_HASH,
    .key_size = sizeof(struct address),
    .value_size = 1,
    .max_entries = 64, // at most so many xdp.to_host
};

enum { ETHERNET = 14, ARP = 28, IPV4 = 20, IPV6 = 40, SOLICITATION = 24 };
enum { ICMPV6 = 58, NEIGHBOR_SOLICITATION = 135 };

INLINE int is_host(const u8 *at, int is_v4) {
    struct address address = {};
    if (is_v4) {
        address.words[2] = __builtin_bswap32(0xffff);
        __builtin_memcpy(&address.words[3], at, 4);
    } else {
        __builtin_memcpy(&address, at, sizeof(address));
    }
    return lookup(&hosts, &address) != 0;
}

// Frames to an address of this machine, and those that ask for the link address that belongs to one. Tagged
// frames are not looked into: the same address may stand for another host in a VLAN.
INLINE int is_for_this_machine(struct xdp_md *ctx) {
    const u8 *frame = (const u8 *)(long)ctx->data, *end = (const u8 *)(long)ctx->data_end;
    const u8 *packet = frame + ETHERNET;
    if (packet > end)
        return 0;
    switch (frame[12] << 8 | frame[13]) {
    case 0x0800:
        return packet + IPV4 <= end && is_host(packet + 16, 1);
    case 0x0806:
        return packet + ARP <= end && is_host(packet + 24, 1);
    case 0x86dd:
        if (packet + IPV6 > end)
            return 0;
        if (is_host(packet + 24, 0))
            return 1;
        return packet[6] == ICMPV6 && packet + IPV6 + SOLICITATION <= end && packet[IPV6] == NEIGHBOR_SOLICITATION &&
               is_host(packet + IPV6 + 8, 0);
    }
    return 0;
}

// All frames of a queue with a socket. Those of other queues stay with the kernel.
SEC("xdp") int all(struct xdp_md *ctx) { return redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS); }

// The same, without the frames to this machine.
SEC("xdp") int all_but_own(struct xdp_md *ctx) {
    return is_for_this_machine(ctx) ? XDP_PASS : redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Apache-2.0";
