//! How it ends: everything recorded, nothing left.

use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;

use crate::Outcome;
use crate::coverage::Coverage;
use crate::device::look;
use crate::ensure;
use crate::events::{End, FLOWS, Kind};
use crate::world::{LAG_US, World};

/// Rounds that are enough for any back-off of a device.
const ROUNDS_MAX: usize = 2000;
const LONG_ROUND_US: u64 = 20_000;

impl World {
    /// Stops in one of the possible ways, and compares the sums. Returns what was reached.
    pub fn finish(mut self) -> Result<Coverage, String> {
        for bay in &self.bays {
            look(bay, |bay| bay.is_willing = true);
        }
        if self.is_live() {
            match self.plan.end {
                End::Silence => self.fall_silent()?,
                End::Stop => self.await_labels()?,
                End::StopAtOnce => {}
            }
        }
        let awaited = self.flows.labels_awaited() > 0;
        self.coverage.saw_if(awaited, "stopped with labels on their way");
        self.flows.drain();
        self.until("everything is said", |world| {
            world.settle()?;
            Ok(world.flows.is_settled())
        })?;
        self.check_balances()?;
        self.check_flows()?;
        self.stop_series()
    }

    /// Rounds until the condition holds.
    fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut World) -> Result<bool, String>,
    ) -> Outcome {
        for _ in 0..ROUNDS_MAX {
            if is_so(self)? {
                return Ok(());
            }
            self.round(LONG_ROUND_US);
        }
        Err(format!("never: {what}"))
    }

    fn await_labels(&mut self) -> Outcome {
        self.until("no label is awaited", |world| {
            world.settle()?;
            Ok(world.flows.labels_awaited() == 0)
        })
    }

    /// Flows end by themselves when nothing comes any more, even after the clock was set back: the
    /// next packet shows that it was. A packet less than a minute back could just be late, and time
    /// goes on when it has caught up.
    fn fall_silent(&mut self) -> Outcome {
        self.burst(vec![(FLOWS - 1, Kind::Syn)])?;
        for _ in 0..20 {
            self.pause(5_000_000);
            self.flows.pass(self.wall_us - LAG_US);
            self.round(LONG_ROUND_US);
            self.settle()?;
        }
        let alive = self.flows.flows_alive();
        ensure!(alive == 0, "{alive} flows have not ended in 100 s of silence");
        self.coverage.saw("silence");
        Ok(())
    }

    /// The flow manager has counted what was recorded.
    fn check_flows(&mut self) -> Outcome {
        let counters = self.flows.counters();
        let ended: u64 = counters.flows_ended.iter().sum();
        let finals = ended - counters.flows_ended[EndReason::Active as usize];
        ensure!(finals == self.model.finals, "{finals} ends counted, {} said", self.model.finals);
        ensure!(counters.flows_begun.total() == finals, "{finals} flows over");
        let bytes: u64 = counters.behaviours.iter().map(|it| it.bytes).sum();
        ensure!(
            bytes == counters.flow_bytes,
            "{bytes} bytes by behaviour, {} in all",
            counters.flow_bytes
        );
        let left = self.model.unrecorded();
        ensure!(left == 0, "{left} packets in no record");
        let labelled = (counters.verdicts.get(Verdict::Labelled), counters.labelled_bytes);
        ensure!(
            labelled == self.model.labelled,
            "labelled {labelled:?}, not {:?}",
            self.model.labelled
        );
        let by_class = counters.labelled_by_class.iter();
        let by_class =
            by_class.fold((0, 0), |(packets, bytes), it| (packets + it.packets, bytes + it.bytes));
        ensure!(by_class == labelled, "labelled by class {by_class:?}");
        let (evicted, idle) = (self.model.evicted_established, counters.evictions.idle);
        ensure!(evicted <= idle, "{evicted} evicted in use, {idle} of them idle");
        for (kind, flows) in counters.evictions.by_kind() {
            self.coverage.add(kind, flows);
        }
        let withheld = counters.series_withheld();
        self.coverage.add("withheld", withheld);
        let half_open = counters.series_shed_half_open();
        self.coverage.add("ring half full", half_open);
        let labels: u64 = self.model.labels.iter().sum();
        let contradicting = self.model.contradicting;
        let counted = counters.depths[0].flows_contradicting;
        ensure!(counted == contradicting, "{counted} contradictions counted");
        for (counted, said) in
            [(counters.labels_given(), labels), (counters.flows_labelled(), labels - contradicting)]
        {
            let counted: u64 = counted.iter().sum();
            ensure!(counted == said, "{counted} labels counted, {said} said");
        }
        Ok(())
    }

    /// The flow manager's thread ends, and the analytics side finishes the rest.
    fn stop_series(self) -> Result<Coverage, String> {
        let shed = self.flows.counters().series_shed();
        let given = self.flows.counters().series_emitted() - shed;
        let (is_live, labels) = (self.is_live(), self.model.labels);
        let ports_first = self.plan.ports_first;
        let World { flows, mut series, mut coverage, mut now_ns, .. } = self;
        drop(flows);
        series.drain();
        let mut rounds = 0;
        while !series.is_done() {
            rounds += 1;
            ensure!(rounds < ROUNDS_MAX, "the analytics side never ends");
            now_ns += LONG_ROUND_US * 1000;
            series.round(now_ns);
        }
        let counters = series.tasks()[0].counters();
        ensure!(
            counters.series == given && counters.undecided() == 0,
            "series {given}, {counters:?}"
        );
        let decided = counters.cached + counters.inferred;
        let [by_model, by_cache, ..] = labels;
        let said = by_model + by_cache + counters.post_mortem;
        // An answer that does not contradict a port is no label.
        let is_right = match ports_first {
            true => decided >= said,
            false => decided == said,
        };
        ensure!(is_right, "{decided} labels, {said} said");
        ensure!(is_live || counters.post_mortem == 0, "post-mortem in a replay");
        ensure!(counters.cache.audits_differ == 0, "the cache was wrong");

        coverage.add("ring full", shed);
        coverage.add("post-mortem", counters.post_mortem);
        coverage.add("audit", counters.cache.audits_agree);
        coverage.add("retried", counters.retried);
        coverage.add("failed twice", counters.failed_after_retry);
        coverage.add("failed without another device", counters.failed_no_other_device);
        coverage.add("shed without a device", counters.shed_no_device);
        coverage.add("swap", counters.swaps);
        for device in &counters.devices {
            for kind in analytics::FailureKind::ALL {
                coverage.add(kind.name(), device.failures(kind));
            }
            coverage.add("device came back", device.came_back);
        }
        Ok(coverage)
    }
}
