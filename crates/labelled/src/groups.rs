//! What must stay on one side of a split: flows of one capture resemble each other.

use std::collections::HashMap;

use crate::TableError;
use crate::flows::Flow;
use crate::table::{Row, Table};

/// Columns by which captures with a flow in common are known.
const TIES: [&str; 2] = ["group", "community_id"];

/// What is held out together: captures, where those that share a group or a conversation are one; without captures, the column
/// `group`; or a column that the user names.
pub(crate) struct Groups {
    capture: Option<usize>,
    ties: Vec<(usize, &'static str)>,
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    /// The node that each belongs to; a node that belongs to itself is a group.
    parents: Vec<usize>,
}

impl Groups {
    pub fn find(table: &Table, group: Option<&str>) -> Result<Groups, TableError> {
        let capture = match group {
            Some(name) => Some(table.named_column(name, "--group")?),
            None => table.column("capture").or(table.column("group")),
        };
        let tie = |name: &&'static str| Some((table.column(name)?, *name));
        let ties = TIES
            .iter()
            .filter_map(tie)
            .filter(|(at, _)| Some(*at) != capture);
        Ok(Groups {
            capture,
            ties: ties.filter(|_| group.is_none()).collect(),
            numbers: HashMap::new(),
            names: Vec::new(),
            parents: Vec::new(),
        })
    }

    /// The capture of a row, as a node.
    pub fn of(&mut self, row: &Row<'_>) -> Result<usize, TableError> {
        let capture = self.node(String::new(), row.name(self.capture)?);
        for at in 0..self.ties.len() {
            let (column, kind) = self.ties[at];
            let value = row.name(Some(column))?;
            if !value.is_empty() {
                let tie = self.node(format!("{kind}\0"), value);
                let (from, to) = (self.root(tie), self.root(capture));
                self.parents[from] = to;
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
        let text = "proto,dport,data_lengths,label,capture,group,community_id\n\
                    17,53,60,DNS,a,1,\n\
                    17,53,60,DNS,b,2,x\n\
                    17,53,60,DNS,c,1,y\n\
                    6,80,300,HTTP,d,3,x\n\
                    6,80,300,HTTP,e,4,\n";
        let flows = read(text, "label").unwrap();
        let groups: Vec<usize> = flows.flows.iter().map(|flow| flow.group).collect();
        assert_eq!((groups[0], groups[1]), (groups[2], groups[3]));
        assert!(groups[0] != groups[1] && groups[4] != groups[0] && groups[4] != groups[1]);
    }
}
