//! Keys of Plimsoll's own file that have no effect in `plimsoll run`.

use crate::kubelet::DEFAULT_EVICTION_HARD;
use crate::model::{Configuration, Origin};
use crate::show::{MAPS_BY_SIGNAL, is_observed};
use crate::tree::Problems;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::Signal;

/// Warns of each that differs from the default. A kubelet's own files get no such warning, since the kubelet decides by
/// them.
pub(crate) fn warn(configuration: &Configuration, own: &str, problems: &mut Problems) {
    let kubelet = &configuration.kubelet;
    problems.turn_to(own);
    let why = "no effect in `run`, which goes by memory, tasks and disks alone; used by `replay` and `explain`";
    let without_pods = "no effect in `run` without machine.podFacts or machine.cluster, or with the policy `kubelet`; used by \
                        `replay` and `explain`";
    let line = |origin: &Origin| match origin {
        Origin::File { file, line } if file == own => Some(*line),
        _ => None,
    };
    for map in MAPS_BY_SIGNAL {
        for (name, entry) in kubelet.settings.map(map) {
            let is_default = map == "evictionHard" && DEFAULT_EVICTION_HARD.contains(&(name, &entry.text));
            // A name that is not a signal is reported as unknown.
            let idle = Signal::parse(name).filter(|signal| !is_observed(configuration, *signal));
            if let (Some(line), Some(signal), false) = (line(&entry.origin), idle, is_default) {
                let why = if signal == Signal::AllocatableMemoryAvailable { without_pods } else { why };
                problems.warn(Some(line), &format!("{map}.{name}"), Some(&entry.text), why);
            }
        }
    }
    if let Some(line) = line(configuration.origin("swap.free")) {
        problems.warn(Some(line), "swap", None, why);
    }
    let decides_about_none = configuration.eviction_policy == EvictionPolicy::Kubelet;
    if let (Some(line), true) = (line(configuration.origin("machine.slices")), decides_about_none) {
        problems.warn(
            Some(line),
            "machine.slices",
            None,
            "no effect with the policy `kubelet`, which decides about no slice",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::{Overrides, Text, Texts, examine_texts};

    fn warned(texts: &Texts) -> Vec<String> {
        examine_texts(texts, &Overrides::default())
            .warnings
            .iter()
            .map(|it| format!("{:?} {}", it.line, it.key))
            .collect()
    }

    #[test]
    fn keys_without_effect_in_run_are_warned_of() {
        let own = |text: &str| {
            warned(&Texts { own: Some(Text { file: "f".to_owned(), text: text.to_owned() }), ..Texts::default() })
        };
        assert_eq!(
            own("evictionHard: {memory.available: 1Gi, nodefs.available: 10%}\nevictionPolicy: plimsoll\n"),
            [""; 0]
        );
        assert_eq!(own("localStorageCapacityIsolation: true\n"), [""; 0]);
        assert_eq!(own("\nlocalStorageCapacityIsolation: false\n"), [""; 0]);
        assert_eq!(
            own(
                "evictionHard:\n  memory.available: 1Gi\n  nodefs.available: 11%\nevictionPolicy: kubelet\nswap: {free: 10%}\n"
            ),
            ["Some(5) swap"]
        );
        assert_eq!(
            own("evictionSoft: {allocatableMemory.available: 1Gi}\n\
                 evictionSoftGracePeriod: {allocatableMemory.available: 1m}\n\
                 evictionHard: {memory.available: 1Gi, imagefs.available: 11%, pid.available: 5%}\n"),
            [
                "Some(1) evictionSoft.allocatableMemory.available",
                "Some(2) evictionSoftGracePeriod.allocatableMemory.available"
            ]
        );
        let slices = "machine:\n  slices: [{path: a.slice, evictionHard: {memory.available: 1Mi}}]\n";
        assert_eq!(own(&format!("evictionPolicy: kubelet\n{slices}")), ["Some(3) machine.slices"]);
        assert_eq!(own(slices), [""; 0]);
        let texts = Texts {
            own: Some(Text { file: "f".to_owned(), text: "evictionPolicy: kubelet\nswap: {free: 10%}\n".to_owned() }),
            ..Texts::default()
        };
        let warnings = examine_texts(&texts, &Overrides::default()).warnings;
        let explains: Vec<_> = warnings.iter().map(|it| it.to_string().contains("`explain`")).collect();
        assert_eq!(explains, [true], "it shows swap's line");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    evictionHard: {memory.available: 1Gi, nodefs.available: 11%}\n";
        let of_kubelet = Text { file: "k".to_owned(), text: text.to_owned() };
        assert_eq!(warned(&Texts { kubelet_config: Some(of_kubelet), ..Texts::default() }), [""; 0]);
    }

    #[test]
    fn a_threshold_of_containerfs_is_ignored_with_a_warning_as_by_the_kubelet() {
        let thresholds = "evictionHard: {memory.available: 1Gi, containerfs.available: 5%}\n\
                          evictionSoft: {containerfs.inodesFree: 9%}\n\
                          evictionSoftGracePeriod: {containerfs.inodesFree: 1m}\n";
        let own = Text { file: "f".to_owned(), text: thresholds.to_owned() };
        let kubelet = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{thresholds}");
        let of_kubelet = Text { file: "k".to_owned(), text: kubelet };
        for (texts, lines) in [
            (Texts { own: Some(own), ..Texts::default() }, [1, 2]),
            (Texts { kubelet_config: Some(of_kubelet), ..Texts::default() }, [3, 4]),
        ] {
            let [hard, soft] = lines;
            let expected = [
                format!("Some({hard}) evictionHard.containerfs.available"),
                format!("Some({soft}) evictionSoft.containerfs.inodesFree"),
            ];
            assert_eq!(warned(&texts), expected);
        }
    }
}
