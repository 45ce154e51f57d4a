//! Settings that are one word of a few.

use crate::words::words;

words! {
    /// What is done with live traffic.
    pub enum IoMode {
        /// The traffic is a copy, and nothing is sent.
        #[default]
        Tap = "tap",
        /// The kernel forwards the traffic and gets the labels as connection marks.
        Mark = "mark",
        /// What comes in on one interface leaves by the other.
        Inline = "inline",
    }
}

words! {
    /// How a flow's bucket is found.
    pub enum FlowHash {
        /// By a keyed hash over the ordered tuple.
        #[default]
        Keyed = "keyed",
        /// By the paper's `rss ^ src ^ dst`.
        Fenxi = "fenxi",
    }
}

words! {
    /// Where the log goes.
    pub enum LogTo {
        /// To the journal if stderr leads there, otherwise to stderr.
        #[default]
        Auto = "auto",
        /// To the journal.
        Journald = "journald",
        /// To stderr.
        Stderr = "stderr",
    }
}
