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
    /// Which packets come up from the kernel.
    pub enum Capture {
        /// All of them.
        #[default]
        All = "all",
        /// The first ones of each flow; the kernel counts the others.
        First = "first",
    }
}

words! {
    /// Where an XDP program takes frames.
    pub enum XdpMode {
        /// In the driver where that can do it, else in the kernel.
        #[default]
        Auto = "auto",
        /// In the driver.
        Native = "native",
        /// In the kernel.
        Generic = "generic",
    }
}

words! {
    /// Whether a card writes into this program's memory.
    pub enum ZeroCopy {
        /// Where its driver can do that.
        #[default]
        Auto = "auto",
        /// It does, or the run does not start.
        On = "on",
        /// The kernel copies each frame.
        Off = "off",
    }
}

words! {
    /// What the mark of a connection holds.
    pub enum MarkAs {
        /// The bits of the label in `mark.class`.
        #[default]
        Label = "label",
        /// The DSCP of the label in `tag.dscp`, as `tc ... action ctinfo dscp 63 128` reads it.
        Dscp = "dscp",
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

words! {
    /// `policy.update`.
    pub enum PolicyUpdate {
        /// Changes of the rules count at once.
        #[default]
        Instant = "instant",
        /// They count once an index is trained with them.
        Delayed = "delayed",
    }
}
