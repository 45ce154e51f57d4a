//! Links calls of kernel functions that are no helpers (kfuncs), which aya does not.
//!
//! The programs call helpers with numbers that do not exist (`bpf/mark.h`). Here such a call
//! becomes one of the function itself, by its number among the types of the running kernel (BTF).
//! Functions of a module have numbers of the module's own, which only a process with
//! `CAP_SYS_ADMIN` may hand to the kernel; these are not linked.

use aya::Btf;
use aya_obj::btf::BtfKind;
use rustix::thread::{CapabilitySet, capabilities};

/// Numbers of `bpf/mark.h`, and the functions.
const FUNCTIONS: [(u32, &str); 2] =
    [(0x7f00_0001, "bpf_skb_ct_lookup"), (0x7f00_0002, "bpf_ct_release")];

/// The source register of a call of a helper, and of a kfunc (BPF_PSEUDO_KFUNC_CALL).
const HELPER: u8 = 0;
const KFUNC: u8 = 2;

/// Why no connection can be marked by a program.
#[derive(Debug, thiserror::Error)]
#[error("{0}: marks by skb->mark and a rule of nftables, or over ctnetlink")]
pub struct NotLinked(&'static str);

/// Whether programs can mark connections in the running kernel.
pub fn marks_connections() -> Result<(), NotLinked> {
    link(&[], Btf::from_sys_fs().ok().as_ref()).map(drop)
}

/// An object whose programs call the functions of the running kernel, whose types these are.
pub fn link(object: &[u8], types: Option<&Btf>) -> Result<Vec<u8>, NotLinked> {
    let may = [CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];
    if !capabilities(None).is_ok_and(|all| may.iter().any(|it| all.effective.contains(*it))) {
        return Err(NotLinked("programs need CAP_PERFMON to mark connections"));
    }
    let types = types.ok_or(NotLinked("the kernel has no types (CONFIG_DEBUG_INFO_BTF)"))?;
    let mut object = object.to_vec();
    for (number, name) in FUNCTIONS {
        let id = types.id_by_type_name_kind(name, BtfKind::Func);
        let (from, to) = (call(HELPER, number), call(KFUNC, id.map_err(|_| NotLinked(missing()))?));
        // Sections with instructions begin at multiples of eight bytes.
        let (words, _) = object.as_chunks_mut();
        words.iter_mut().filter(|word| **word == from).for_each(|word| *word = to);
    }
    Ok(object)
}

/// A call instruction.
fn call(source: u8, number: u32) -> [u8; 8] {
    const BPF_CALL: u8 = 0x85;
    let [a, b, c, d] = number.to_le_bytes();
    [BPF_CALL, source << 4, 0, 0, a, b, c, d]
}

fn missing() -> &'static str {
    match std::fs::exists("/sys/kernel/btf/nf_conntrack") {
        Ok(true) => "the kernel's conntrack is a module, whose functions fenxi cannot link",
        _ => "the kernel has no functions of conntrack for programs (before 6.1, or no conntrack)",
    }
}

#[cfg(test)]
mod tests;
