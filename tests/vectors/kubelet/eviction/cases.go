// Package eviction is the kubelet's package of that name, copied beside this file when cases are generated, so that its
// unexported functions can be called. This file and traces.go draw random inputs and record what those functions return.
package eviction

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	v1resource "k8s.io/kubernetes/pkg/api/v1/resource"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	kubelettypes "k8s.io/kubernetes/pkg/kubelet/types"
)

const source = "k8s.io/kubernetes v1.36.3 pkg/kubelet/eviction"

type object = map[string]any

// The beginning of every clock.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type dice struct{ *rand.Rand }

func (d dice) one(in int) bool { return d.IntN(in) == 0 }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

func maybe[T any](d dice, absent int, value T) *T {
	if d.one(absent) {
		return nil
	}
	return &value
}

// Generate writes one file for each kind of case.
func Generate(directory string, cases int, seed uint64) error {
	klog.SetLogger(klog.Logger{})
	for index, file := range []struct {
		name string
		draw func(dice) object
	}{{"signals", signals}, {"ranking", ranking}, {"message", message}, {"traces", trace}} {
		d := dice{rand.New(rand.NewPCG(seed, uint64(index)))}
		var drawn []object
		for index := range cases {
			drawn = append(drawn, file.draw(d))
			drawn[index]["name"] = fmt.Sprintf("seed %d, %d", seed, index)
		}
		text, err := json.MarshalIndent(object{"source": source, "cases": drawn}, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, file.name+".json"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Amounts that often are equal, and often differ by one byte.
func (d dice) bytes() uint64 {
	bytes := pick[uint64](d, 0, 1, 2, 4, 8, 16, 64) << 20
	if d.one(6) && bytes > 0 {
		bytes += pick[uint64](d, 1, math.MaxUint64)
	}
	return bytes
}

func (d dice) resources() v1.ResourceList {
	list := v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourceCPU, "hugepages-2Mi"} {
		if !d.one(2) || name == v1.ResourceMemory && !d.one(4) {
			list[name] = resource.MustParse(pick(d, "0", "1Mi", "2Mi", "4Mi", "8M", "16Mi", "1e6", "0.5Gi", "100m"))
		}
		if name == "hugepages-2Mi" && !d.one(20) {
			delete(list, name)
		}
	}
	return list
}

func (d dice) requirements() v1.ResourceRequirements {
	var requirements v1.ResourceRequirements
	if !d.one(3) {
		requirements.Requests = d.resources()
	}
	switch {
	case d.one(4):
		requirements.Limits = requirements.Requests
	case d.one(3):
		requirements.Limits = d.resources()
	}
	return requirements
}

func (d dice) volume(name string) v1.Volume {
	volume := v1.Volume{Name: name}
	switch d.IntN(6) {
	case 0:
		volume.HostPath = &v1.HostPathVolumeSource{Path: "/srv"}
	case 1:
		volume.ConfigMap = &v1.ConfigMapVolumeSource{}
	case 2:
		volume.Secret = &v1.SecretVolumeSource{SecretName: name}
	default:
		volume.EmptyDir = &v1.EmptyDirVolumeSource{Medium: pick(d, v1.StorageMediumDefault, v1.StorageMediumMemory)}
		if d.one(3) {
			limit := resource.MustParse(pick(d, "0", "8Mi", "16M", "1Gi"))
			volume.EmptyDir.SizeLimit = &limit
		}
	}
	return volume
}

func (d dice) pod(name string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	for index := range 1 + d.IntN(3) {
		container := v1.Container{Name: fmt.Sprintf("c%d", index), Resources: d.requirements()}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	for index := range d.IntN(3) {
		container := v1.Container{Name: fmt.Sprintf("i%d", index), Resources: d.requirements()}
		if d.one(2) {
			always := v1.ContainerRestartPolicyAlways
			container.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	}
	for index := range d.IntN(3) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, d.volume(fmt.Sprintf("v%d", index)))
	}
	if d.one(6) {
		requirements := d.requirements()
		pod.Spec.Resources = &requirements
	}
	if d.one(6) {
		pod.Spec.Overhead = d.resources()
	}
	pod.Spec.Priority = maybe(d, 4, pick[int32](d, 0, 0, 1, -1, 1000, 2_000_000_000))
	pod.Spec.TerminationGracePeriodSeconds = maybe(d, 2, pick[int64](d, 0, 1, 30, 3600))
	if d.one(12) {
		pod.Annotations = map[string]string{pick(d, kubelettypes.ConfigSourceAnnotationKey, kubelettypes.ConfigMirrorAnnotationKey): pick(d, "file", "api")}
	}
	return pod
}

func (d dice) pods(most int) []*v1.Pod {
	pods := []*v1.Pod{}
	for index := range 1 + d.IntN(most) {
		pods = append(pods, d.pod(fmt.Sprintf("p%d", index)))
	}
	return pods
}

func (d dice) used() *statsapi.FsStats {
	if d.one(8) {
		return nil
	}
	return &statsapi.FsStats{UsedBytes: maybe(d, 8, d.bytes()), InodesUsed: maybe(d, 8, d.Uint64N(500))}
}

func (d dice) podStats(pods []*v1.Pod) []statsapi.PodStats {
	all := []statsapi.PodStats{}
	for _, pod := range pods {
		if d.one(10) {
			continue
		}
		stats := statsapi.PodStats{PodRef: statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}}
		if !d.one(8) {
			stats.Memory = &statsapi.MemoryStats{WorkingSetBytes: maybe(d, 10, d.bytes())}
		}
		if !d.one(4) {
			stats.ProcessStats = &statsapi.ProcessStats{ProcessCount: maybe(d, 10, d.Uint64N(5))}
		}
		if !d.one(3) {
			stats.EphemeralStorage = d.used()
		}
		for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			of := statsapi.ContainerStats{Name: container.Name, Rootfs: d.used(), Logs: d.used()}
			if !d.one(5) {
				of.Memory = &statsapi.MemoryStats{WorkingSetBytes: maybe(d, 10, d.bytes())}
			}
			stats.Containers = append(stats.Containers, of)
		}
		for _, volume := range pod.Spec.Volumes {
			// The kubelet's check of a volume's limit needs its bytes.
			used := statsapi.FsStats{UsedBytes: maybe(d, 1_000_000_000, d.bytes()), InodesUsed: maybe(d, 8, d.Uint64N(500))}
			stats.VolumeStats = append(stats.VolumeStats, statsapi.VolumeStats{Name: volume.Name, FsStats: used})
		}
		all = append(all, stats)
	}
	return all
}

func (d dice) fs(at metav1.Time) *statsapi.FsStats {
	if d.one(12) {
		return nil
	}
	return &statsapi.FsStats{
		Time:           at,
		AvailableBytes: maybe(d, 20, d.Uint64N(20)<<30),
		CapacityBytes:  maybe(d, 20, uint64(100)<<30),
		InodesFree:     maybe(d, 20, d.Uint64N(200_000)),
		Inodes:         maybe(d, 20, uint64(1_000_000)),
	}
}

func (d dice) memory(at metav1.Time) *statsapi.MemoryStats {
	if d.one(12) {
		return nil
	}
	available := d.Uint64N(4096) << 20
	return &statsapi.MemoryStats{Time: at, AvailableBytes: &available, WorkingSetBytes: maybe(d, 12, uint64(8)<<30-available)}
}

func (d dice) summary(pods []*v1.Pod, at time.Time) *statsapi.Summary {
	now := metav1.NewTime(at)
	summary := &statsapi.Summary{Pods: d.podStats(pods)}
	summary.Node.Memory, summary.Node.Fs = d.memory(now), d.fs(now)
	summary.Node.SystemContainers = []statsapi.ContainerStats{{Name: statsapi.SystemContainerPods, Memory: d.memory(now)}}
	summary.Node.Runtime = &statsapi.RuntimeStats{ImageFs: d.fs(now), ContainerFs: d.fs(now)}
	if !d.one(8) {
		summary.Node.Rlimit = &statsapi.RlimitStats{Time: now, MaxPID: maybe(d, 20, int64(32768)), NumOfRunningProcesses: maybe(d, 20, d.Int64N(33000))}
	}
	return summary
}

func signals(d dice) object {
	summary := d.summary(nil, start.Add(time.Duration(d.IntN(100))*time.Second))
	observations, _ := makeSignalObservations(klog.Background(), summary)
	found := object{}
	for signal, observed := range observations {
		entry := object{
			"available": observed.available.String(), "available_value": observed.available.Value(),
			"capacity": observed.capacity.String(), "capacity_value": observed.capacity.Value(),
		}
		if !observed.time.IsZero() {
			entry["time"] = observed.time
		}
		found[string(signal)] = entry
	}
	return object{"summary": summary, "observations": found}
}

func ranking(d dice) object {
	// Up to twelve pods the sort keeps equal ones in order.
	pods := d.pods(12)
	stats := d.podStats(pods)
	facts := []object{}
	for _, pod := range pods {
		decimal := func(name v1.ResourceName) string {
			amount := v1resource.GetResourceRequestQuantity(pod, name)
			return amount.AsDec().String()
		}
		facts = append(facts, object{
			"qos": v1qos.GetPodQOS(pod), "critical": kubelettypes.IsCriticalPod(pod),
			"memory_request": decimal(v1.ResourceMemory), "ephemeral_storage_request": decimal(v1.ResourceEphemeralStorage),
		})
	}
	ranks := object{}
	for name, layout := range map[string][2]bool{"single": {false, false}, "imagefs": {true, false}, "split": {true, true}} {
		of := object{}
		for signal, rank := range buildSignalToRankFunc(layout[0], layout[1]) {
			ranked := slices.Clone(pods)
			rank(ranked, cachedStatsFunc(stats))
			order := []int{}
			for _, pod := range ranked {
				order = append(order, slices.Index(pods, pod))
			}
			of[string(signal)] = object{"order": order}
		}
		ranks[name] = of
	}
	return object{"pods": pods, "pod_facts": facts, "stats": stats, "ranks": ranks}
}

func value(of evictionapi.ThresholdValue) object {
	if of.Quantity == nil {
		bits := fmt.Sprintf("%08x", math.Float32bits(of.Percentage))
		return object{"percentage": strconv.FormatFloat(float64(of.Percentage), 'f', -1, 32), "percentage_bits": bits}
	}
	exact := of.Quantity.DeepCopy()
	return object{"quantity": of.Quantity.String(), "value": exact.AsDec().String()}
}

func listed(thresholds []evictionapi.Threshold) []object {
	list := []object{}
	for _, threshold := range thresholds {
		entry := object{
			"signal": threshold.Signal, "operator": threshold.Operator,
			"value": value(threshold.Value), "grace_period_ns": threshold.GracePeriod.Nanoseconds(),
		}
		if threshold.MinReclaim != nil {
			entry["min_reclaim"] = value(*threshold.MinReclaim)
		}
		list = append(list, entry)
	}
	return list
}

// The parts of a configuration that thresholds are parsed from.
type settings struct {
	enforce                        []string
	hard, soft, grace, min_reclaim map[string]string
}

func (d dice) settings() settings {
	of := settings{pick(d, []string{"none"}, []string{"pods"}), map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}}
	for _, signal := range []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"} {
		at := func() string {
			if signal == "memory.available" {
				return pick(d, "1Gi", "2G", "1500Mi", "10%", "25%", "0.5Gi")
			}
			return pick(d, "5%", "10%", "15%", "33.3%", "5Gi", "10G", "50k")
		}
		if d.one(3) {
			of.hard[signal] = at()
		}
		if d.one(3) {
			of.soft[signal], of.grace[signal] = at(), pick(d, "0s", "10s", "20s", "1m")
			if of.soft[signal] == of.hard[signal] {
				// With a grace of zero, the two would be equal and could not be listed apart.
				of.grace[signal] = "1m"
			}
		}
		if d.one(4) {
			of.min_reclaim[signal] = pick(d, "500Mi", "1Gi", "5%", "0")
		}
	}
	return of
}

func (of settings) thresholds() []evictionapi.Threshold {
	thresholds, err := ParseThresholdConfig(of.enforce, of.hard, of.soft, of.grace, of.min_reclaim)
	if err != nil {
		panic(err)
	}
	return thresholds
}

func message(d dice) object {
	pod := d.pod("p")
	summary := d.summary([]*v1.Pod{pod}, start)
	thresholds := d.settings().thresholds()
	observations, stats := makeSignalObservations(klog.Background(), summary)
	resource := pick(d, v1.ResourceMemory, v1.ResourceMemory, v1.ResourceEphemeralStorage, resourceInodes, resourcePids)
	text, annotations := evictionMessage(resource, pod, stats, thresholds, observations)
	return object{
		"resource": resource, "pod": pod, "summary": summary, "thresholds": listed(thresholds),
		"message": text, "annotations": annotations,
	}
}
