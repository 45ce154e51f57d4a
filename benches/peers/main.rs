//! Our flow table beside hash maps out of crates, driven by `figures/peers.py`.
//!
//! The script starts this program with `ENTRIES FLOWS LOOK_UPS SEED` and writes one
//! table and burst per line, as in `ours 64`. The answer is one line: ns that a round
//! took and how many of its look-ups found their flow. A table is filled when it is
//! named first. Between lines the program sleeps, so that the script can alternate
//! between several such programs; `rte_hash.c` is the other one.
//!
//! The look-ups of a round are made beforehand, as an array of keys: a round reads it
//! in order, whatever the table.

mod tables;
mod traffic;

use std::error::Error;
use std::io::{self, Write};
use std::time::Instant;

use flowmgr::Key;
use tables::FlowTable;
use traffic::Traffic;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> =
        std::env::args().skip(1).map_while(|argument| argument.parse().ok()).collect();
    let &[entries, flows, look_ups, seed] = numbers.as_slice() else {
        println!("peers: run by figures/peers.py, not alone");
        return Ok(());
    };
    let traffic = Traffic { flows, seed };
    let keys: Vec<Key> = traffic.look_ups(look_ups).collect();
    println!("ready {:016x}", traffic.checksum(look_ups));
    answer(&traffic, entries as usize, &keys)
}

fn answer(traffic: &Traffic, entries: usize, keys: &[Key]) -> Result<(), Box<dyn Error>> {
    let mut filled: Vec<(String, Box<dyn FlowTable>)> = Vec::new();
    for line in io::stdin().lines() {
        let line = line?;
        let (name, burst) = line.split_once(' ').ok_or("a line is: TABLE BURST")?;
        let burst = burst.parse()?;
        let at = match filled.iter().position(|(one, _)| one == name) {
            Some(at) => at,
            None => {
                let table = tables::filled(name, entries, traffic)?;
                filled.push((name.to_owned(), table));
                filled.len() - 1
            }
        };
        let begin = Instant::now();
        let found = filled[at].1.look_up(keys, burst);
        println!("{} {found}", begin.elapsed().as_nanos());
        io::stdout().flush()?;
    }
    Ok(())
}
