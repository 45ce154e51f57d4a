// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Asks the network about a question in a packet, and writes the answer in front of it. Never
// attached: test runs (BPF_PROG_TEST_RUN) compare it with the engine and time it.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "net.h"

// Where they stand in the packet, behind an Ethernet header.
#define ANSWER 16
#define QUESTION 24

SEC("classifier")
int fenxi_ask(struct __sk_buff *skb)
{
	struct question question;
	if (bpf_skb_load_bytes(skb, QUESTION, &question, sizeof(question)))
		return TC_ACT_SHOT;
	long answer = ask(&question);
	if (bpf_skb_store_bytes(skb, ANSWER, &answer, sizeof(answer), 0))
		return TC_ACT_SHOT;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "GPL";
