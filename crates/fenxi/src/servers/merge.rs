//! One memory of servers out of several flow workers' memories.

use flowmgr::{ServerCell, ServerCells, minute};

use super::file;

/// All cells by falling worth, at most `most`. `None` for no memories.
///
/// A cell counts as many flows as in the worker where it has most, not their sum: each run gives it
/// to all workers, so a sum would grow from one run to the next without a flow.
pub fn merged<'a>(
    memories: impl Iterator<Item = &'a ServerCells>,
    most: usize,
    now_us: i64,
) -> Option<ServerCells> {
    let (mut cells, mut secret, mut all) = (Vec::new(), None, None);
    for memory in memories {
        secret = Some(memory.secret);
        all = Some(all.map_or(memory.all, |before| both(&before, &memory.all)));
        cells.extend_from_slice(&memory.cells);
    }
    cells.sort_unstable_by_key(|(hash, _)| *hash);
    cells.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = both(&kept.1, &next.1);
        }
        is_same
    });
    let now = minute(now_us);
    cells.sort_by_cached_key(|(hash, cell)| (std::cmp::Reverse(worth(cell, now)), *hash));
    cells.truncate(most);
    Some(ServerCells { secret: secret?, all: all?, cells })
}

/// Bytes that the memories of all workers, with this many cells each, take until they are written:
/// gathered, joined and sorted, and the file itself.
pub fn copy_bytes(cells: usize, workers: usize) -> usize {
    const CELL: usize = size_of::<(u64, ServerCell)>();
    /// A key, and the place of its cell.
    const SORTED: usize = size_of::<(std::cmp::Reverse<i32>, u64, usize)>();
    cells * (workers * (2 * CELL + SORTED) + file::CELL)
}

/// In thousandths, which have an order.
fn worth(cell: &ServerCell, now: u16) -> i32 {
    (cell.worth(now) * 1000.0) as i32
}

fn both(a: &ServerCell, b: &ServerCell) -> ServerCell {
    let [of_a, of_b] = [a, b].map(|it| f32::from(it.flows));
    let total = (of_a + of_b).max(1.0);
    let mean = |at: usize| (of_a * a.means[at] + of_b * b.means[at]) / total;
    ServerCell {
        begun_us: a.begun_us.max(b.begun_us),
        means: [0, 1, 2].map(mean),
        flows: a.flows.max(b.flows),
        minute: if b.age(a.minute) == 0 { b.minute } else { a.minute },
    }
}
