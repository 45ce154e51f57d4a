// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Stands in filters of clsact, for kernels without TCX (before 6.6).
//
// A filter outlives the process that adds it, so it holds this program, which calls the one that
// looks at packets through a map. The kernel empties such a map when no process has it open any
// more, by kill -9, too. Then packets go on, and nothing else of fenxi is left in the kernel.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} called SEC(".maps");

SEC("classifier")
int fenxi_filter(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &called, 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
