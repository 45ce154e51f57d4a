//! The network inside the kernel: puts its bytes into the program's maps, and asks it by test runs.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, MapData};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::BPF_F_INNER_MAP;

use crate::ebpf::{errno, load_error, unpacked};

/// `struct block` of `bpf/net.h`.
pub(super) type Block = [u8; 65_536 + 256];
/// Elements of a question.
pub const PLACES: usize = 12;

/// Built from `bpf/ask.c` by `make bpf`, and packed.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ask.o"));
/// Where answer and question stand in the program's packet.
const ANSWER: Range<usize> = 16..24;
const QUESTION: Range<usize> = 24..24 + (2 * PLACES + 4) * size_of::<u32>();

pub(super) type Cause = Box<dyn Error>;

/// The blocks of a network.
///
/// # Errors
/// These are not the bytes of one.
pub(super) fn blocks(net: &[u8], generation: u32) -> Result<Vec<Block>, Cause> {
    let (blocks, []) = net.as_chunks() else {
        return Err("a network has no whole number of blocks".into());
    };
    let mut blocks: Vec<Block> = blocks.to_vec();
    let first = blocks.first_mut().ok_or("a network without bytes")?;
    first[..size_of::<u32>()].copy_from_slice(&generation.to_ne_bytes());
    Ok(blocks)
}

/// A network, block by block.
pub(super) type NetMap = Array<MapData, Block>;
/// A program's networks, by place.
pub(super) type Nets<T = MapData> = ArrayOfMaps<T, NetMap>;

/// A map with room for a network.
pub(super) fn net_map(blocks: usize) -> Result<NetMap, Cause> {
    Ok(Array::create(blocks as u32, BPF_F_INNER_MAP)?)
}

/// Puts a network into a map that no program reads.
pub(super) fn fill(map: &mut NetMap, blocks: &[Block]) -> Result<(), Cause> {
    for (number, block) in (0..).zip(blocks) {
        map.set(number, block, 0)?;
    }
    Ok(())
}

/// The networks of a program that is not loaded yet, or of one that is.
pub(super) fn nets(ebpf: &mut Ebpf) -> Result<Nets<&mut MapData>, Cause> {
    Ok(ebpf.map_mut("nets").ok_or("the object has no map nets")?.try_into()?)
}

fn put(ebpf: &mut Ebpf, net: &[u8], generation: u32) -> Result<(), Cause> {
    let blocks = blocks(net, generation)?;
    let mut map = net_map(blocks.len())?;
    fill(&mut map, &blocks)?;
    Ok(nets(ebpf)?.set(0, &map, 0)?)
}

/// What a network in the kernel is asked about a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Lengths at the IP layer, negative against the flow's first packet; 0 behind the last.
    pub lengths: [i32; PLACES],
    /// Times since the packet before; 0 behind the last.
    pub gaps_us: [u32; PLACES],
    /// How many there are of both.
    pub elements: u32,
    /// Whether the flow is TCP, otherwise UDP.
    pub is_tcp: bool,
    /// Port of the server, or 0.
    pub server_port: u16,
}

impl Question {
    /// A row of a model's input, its channels one after the other: lengths, then gaps, if the model
    /// has them. The context has protocol and port of the server, or is empty.
    pub fn of_row(series: &[f32], context: &[f32], k: usize) -> Question {
        let mut question =
            Question { is_tcp: context.first() == Some(&6.0), ..Question::default() };
        question.server_port = context.get(1).map_or(0, |&port| port as u16);
        let (lengths, gaps) = series.split_at(k);
        question.lengths.iter_mut().zip(lengths).for_each(|(to, &length)| *to = length as i32);
        question.gaps_us.iter_mut().zip(gaps).for_each(|(to, &gap)| *to = gap as u32);
        let last = question.lengths.iter().rposition(|&length| length != 0);
        question.elements = last.map_or(0, |last| last as u32 + 1);
        question
    }
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAnswer {
    /// Number of the class.
    pub class: u16,
    /// Its probability in Q15: 32,768 is 1.
    pub confidence: u16,
    /// Generation of the network.
    pub generation: u32,
}

/// A network in the kernel, asked by test runs; no packet of any interface is seen.
pub struct KernelNet {
    ebpf: Ebpf,
}

/// Why the kernel does not run a network.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KernelNetError(pub(super) String);

impl KernelNet {
    /// Loads the program with a network.
    ///
    /// # Errors
    /// `CAP_BPF`, `CAP_NET_ADMIN` or `CAP_PERFMON` is missing, the kernel refuses the program, or
    /// these are not the bytes of a network.
    pub fn load(net: &[u8]) -> Result<KernelNet, KernelNetError> {
        let load = || -> Result<Ebpf, Box<dyn Error>> {
            let mut ebpf = EbpfLoader::new().load(&unpacked(OBJECT)?)?;
            program(&mut ebpf)?.load()?;
            put(&mut ebpf, net, 0)?;
            Ok(ebpf)
        };
        load().map(|ebpf| KernelNet { ebpf }).map_err(|error| refused(&*error))
    }

    /// Replaces the network.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn swap(&mut self, net: &[u8], generation: u32) -> Result<(), KernelNetError> {
        put(&mut self.ebpf, net, generation).map_err(|error| refused(&*error))
    }

    /// Asks the network once.
    ///
    /// # Errors
    /// The test run fails.
    pub fn ask(&mut self, question: &Question) -> Result<KernelAnswer, KernelNetError> {
        self.run(question, 1).map(|(answer, _)| answer)
    }

    /// Asks the network `times` times; the mean time of one answer.
    ///
    /// # Errors
    /// The test run fails.
    pub fn time(&mut self, question: &Question, times: u32) -> Result<Duration, KernelNetError> {
        self.run(question, times).map(|(_, duration)| duration)
    }

    fn run(
        &mut self,
        question: &Question,
        repeat: u32,
    ) -> Result<(KernelAnswer, Duration), KernelNetError> {
        let mut packet = [0; QUESTION.end];
        let words = question.lengths.iter().map(|length| length.cast_unsigned());
        let others = [question.elements, question.is_tcp.into(), question.server_port.into()];
        let words = words.chain(question.gaps_us).chain(others);
        for (bytes, word) in packet[QUESTION].as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        let mut answered = packet;
        let options = TestRunOptions {
            data_in: Some(&packet),
            data_out: Some(&mut answered),
            repeat,
            ..TestRunOptions::new()
        };
        let run = || Ok(program(&mut self.ebpf)?.test_run(options)?);
        let result = run().map_err(|error: Box<dyn Error>| refused(&*error))?;
        let answer = answered[ANSWER].first_chunk().map(|bytes| i64::from_ne_bytes(*bytes));
        let Some(answer @ 0..) = answer else {
            return Err(KernelNetError("the program gives no answer".into()));
        };
        let (class, confidence) = (answer as u16, (answer >> 16) as u16);
        let answer = KernelAnswer { class, confidence, generation: (answer >> 32) as u32 };
        Ok((answer, result.duration))
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier, Box<dyn Error>> {
    Ok(ebpf.program_mut("fenxi_ask").ok_or("the object has no program")?.try_into()?)
}

pub(super) fn refused(error: &(dyn Error + 'static)) -> KernelNetError {
    let why = match load_error(error) {
        Some((_, Some(log))) => format!("the verifier refuses the program: {log}"),
        _ => error.to_string(),
    };
    KernelNetError(match errno(error) {
        Some(libc::EPERM | libc::EACCES) => {
            format!("{why}; CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed")
        }
        _ => why,
    })
}
