//! What must stay on one side of a split: flows of one capture resemble each other.

use std::collections::HashMap;

use crate::TableError;
use crate::flows::Flow;
use crate::table::{Row, Table};

/// The clocks of two captures may differ by this.
const SAME_START_US: i64 = 1_000_000;

/// What is held out together: captures, where those that share a group, or that recorded the same conversation, are one; without
/// captures, the column `group`; or a column that the user names.
pub(crate) struct Groups {
    capture: Option<usize>,
    group: Option<usize>,
    conversation: Option<Conversation>,
    /// By Community ID and lengths: start and capture.
    seen: HashMap<(String, String), Vec<(i64, usize)>>,
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    /// The node that each belongs to; a node that belongs to itself is a group.
    parents: Vec<usize>,
}

/// The columns that tell a conversation. Devices use the same addresses and ports again, so a Community ID alone does not: start
/// and lengths have to agree as well.
struct Conversation {
    community_id: usize,
    start: usize,
    lengths: [Option<usize>; 2],
}

impl Conversation {
    fn find(table: &Table) -> Option<Conversation> {
        Some(Conversation {
            community_id: table.column("community_id")?,
            start: table.column("first_us").or(table.column("first_ts"))?,
            lengths: ["data_lengths", "lengths"].map(|name| table.column(name)),
        })
    }

    fn lengths<'a>(&self, row: &Row<'a>) -> &'a str {
        match row.cell(self.lengths[0]) {
            "" => row.cell(self.lengths[1]),
            data => data,
        }
    }
}

impl Groups {
    pub fn find(table: &Table, group: Option<&str>) -> Result<Groups, TableError> {
        let capture = match group {
            Some(name) => Some(table.named_column(name, "--group")?),
            None => table.column("capture").or(table.column("group")),
        };
        let tied = group.is_none();
        Ok(Groups {
            capture,
            group: table
                .column("group")
                .filter(|at| tied && Some(*at) != capture),
            conversation: Conversation::find(table).filter(|_| tied && capture.is_some()),
            seen: HashMap::new(),
            numbers: HashMap::new(),
            names: Vec::new(),
            parents: Vec::new(),
        })
    }

    /// The capture of a row, as a node.
    pub fn of(&mut self, row: &Row<'_>) -> Result<usize, TableError> {
        let capture = self.node(String::new(), row.name(self.capture)?);
        let group = row.name(self.group)?;
        if !group.is_empty() {
            let group = self.node("group\0".to_owned(), group);
            self.join(group, capture);
        }
        if let Some(columns) = &self.conversation {
            let id = row.name(Some(columns.community_id))?;
            if !id.is_empty() {
                let start = row.cell(Some(columns.start)).parse().map_err(|_| {
                    row.refuse("the start of the flow is not a time in microseconds")
                })?;
                let flow = (id.to_owned(), columns.lengths(row).to_owned());
                self.seen.entry(flow).or_default().push((start, capture));
            }
        }
        Ok(capture)
    }

    fn node(&mut self, kind: String, value: &str) -> usize {
        let next = self.names.len();
        let at = *self.numbers.entry(kind + value).or_insert(next);
        if at == next {
            self.names.push(value.to_owned());
            self.parents.push(next);
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (from, to) = (self.root(one), self.root(other));
        self.parents[from] = to;
    }

    fn root(&mut self, mut node: usize) -> usize {
        while self.parents[node] != node {
            self.parents[node] = self.parents[self.parents[node]];
            node = self.parents[node];
        }
        node
    }

    /// Replaces each flow's capture by its group; returns the names of all nodes.
    pub fn names(mut self, flows: &mut [Flow]) -> Option<Vec<String>> {
        self.capture?;
        for mut captures in std::mem::take(&mut self.seen).into_values() {
            captures.sort_unstable();
            for pair in captures.windows(2) {
                if pair[1].0.saturating_sub(pair[0].0) <= SAME_START_US {
                    self.join(pair[0].1, pair[1].1);
                }
            }
        }
        for flow in flows {
            flow.group = self.root(flow.group);
        }
        Some(self.names)
    }
}

#[cfg(test)]
mod tests {
    use crate::flows::tests::read;

    #[test]
    fn captures_with_a_flow_in_common_are_one_group() {
        let text = "proto,dport,data_lengths,label,capture,group,community_id,first_us\n\
                    17,53,60,DNS,a,1,,0\n\
                    17,53,60,DNS,b,2,x,0\n\
                    17,53,60,DNS,c,1,y,0\n\
                    17,53,60,DNS,d,3,x,900000\n\
                    6,80,300,HTTP,e,4,,0\n\
                    17,53,60,DNS,f,5,x,3600000000\n\
                    17,53,61,DNS,g,6,x,0\n";
        let flows = read(text, "label").unwrap();
        let groups: Vec<usize> = flows.flows.iter().map(|flow| flow.group).collect();
        assert_eq!((groups[0], groups[1]), (groups[2], groups[3]));
        // Later, or with other lengths, it is another conversation of the same addresses and ports.
        for alone in [0, 1, 4, 5, 6] {
            let others = (0..7).filter(|at| groups[*at] == groups[alone]).count();
            assert_eq!(others, if alone < 2 { 2 } else { 1 }, "{alone}");
        }
    }
}
