//! Pods over limits of local storage that their own specification sets.

use super::state::State;
use crate::kubelet::{AT_ONCE_SECONDS, DiskLayout, over_limit};
use crate::observation::Workload;
use crate::plan::{Action, Limited, Plan, Why};

/// Evicts each of them.
pub(super) fn enforce(workloads: &[Workload<'_>], layout: DiskLayout, state: &mut State, plan: &mut Plan) {
    for (index, workload) in (0_u32..).zip(workloads).filter(|(_, workload)| workload.terminating.is_none()) {
        if let Some(limit) = over_limit(&workload.facts, layout) {
            plan.limited.push(Limited { workload: index, counts: !state.over_limits.contains(&workload.uid) });
            let why = Why::Limit(limit);
            plan.actions.push(Action::Evict { workload: index, why, grace_seconds: AT_ONCE_SECONDS });
        }
    }
    state.over_limits.clear();
    // Never more than there is room for, if the plan has more of it than the state.
    let room = state.over_limits.capacity();
    state.over_limits.extend(plan.limited.iter().take(room).map(|limited| workloads[limited.workload as usize].uid));
}
