package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	clocktesting "k8s.io/utils/clock/testing"
)

// How often a trace is run: the kubelet walks maps, whose order is random, so that a step may have several outcomes.
const runs = 60

const node = "node-1"

// One step of a trace, and what is recorded of it.
type step struct {
	Advance  time.Duration     `json:"advance_ns"`
	Stats    *statsapi.Summary `json:"stats"`
	After    *statsapi.Summary `json:"stats_after_reclaim,omitempty"`
	Active   []string          `json:"active"`
	State    object            `json:"state"`
	Outcomes []json.RawMessage `json:"outcomes"`
}

// What a step does, through the interfaces of the kubelet that the manager calls.
type world struct {
	dedicated, split bool
	step             *step
	calls            int
	events, kills    []object
	reclaimed        []string
}

func (w *world) HasDedicatedImageFs(context.Context) (bool, error)     { return w.dedicated, nil }
func (w *world) HasDedicatedContainerFs(context.Context) (bool, error) { return w.split, nil }

func (w *world) DeleteUnusedImages(context.Context) error {
	w.reclaimed = append(w.reclaimed, "images")
	return nil
}

func (w *world) DeleteAllUnusedContainers(context.Context) error {
	w.reclaimed = append(w.reclaimed, "containers")
	return nil
}

func (w *world) Get(context.Context, bool) (*statsapi.Summary, error) {
	w.calls++
	if w.calls > 1 && w.step.After != nil {
		return w.step.After, nil
	}
	return w.step.Stats, nil
}

func (w *world) GetCPUAndMemoryStats(context.Context) (*statsapi.Summary, error) {
	return nil, fmt.Errorf("the eviction manager does not call this")
}

func (w *world) Event(of runtime.Object, kind, reason, message string) {
	w.AnnotatedEventf(of, nil, kind, reason, "%s", message)
}

func (w *world) Eventf(of runtime.Object, kind, reason, format string, arguments ...any) {
	w.AnnotatedEventf(of, nil, kind, reason, format, arguments...)
}

func (w *world) AnnotatedEventf(of runtime.Object, annotations map[string]string, kind, reason, format string, arguments ...any) {
	event := object{"type": kind, "reason": reason, "message": fmt.Sprintf(format, arguments...)}
	if len(annotations) > 0 {
		event["annotations"] = annotations
	}
	if pod, ok := of.(*v1.Pod); ok {
		event["pod"] = pod.Name
	} else {
		event["node"] = node
	}
	w.events = append(w.events, event)
}

func (w *world) kill(pod *v1.Pod, _ bool, grace *int64, set func(*v1.PodStatus)) error {
	var status v1.PodStatus
	set(&status)
	kill := object{
		"pod": pod.Name, "grace_seconds": *grace,
		"phase": status.Phase, "reason": status.Reason, "message": status.Message,
	}
	for _, condition := range status.Conditions {
		of := object{"type": condition.Type, "status": condition.Status, "reason": condition.Reason}
		if condition.Message != status.Message {
			of["message"] = condition.Message
		}
		kill["condition"] = of
	}
	w.kills = append(w.kills, kill)
	return nil
}

// The thresholds that can be met. Those of containerfs that are derived from nothing have no operator.
func possible(thresholds []evictionapi.Threshold) []evictionapi.Threshold {
	return slices.DeleteFunc(slices.Clone(thresholds), func(threshold evictionapi.Threshold) bool { return threshold.Operator == "" })
}

// The state after a step, in terms of the listed thresholds.
func (m *managerImpl) state(admission map[string]*v1.Pod) object {
	observed, met := [][2]int64{}, []int{}
	for index, threshold := range possible(m.config.Thresholds) {
		if since, ok := m.thresholdsFirstObservedAt[threshold]; ok {
			observed = append(observed, [2]int64{int64(index), since.Sub(start).Nanoseconds()})
		}
		if slices.Contains(m.thresholdsMet, threshold) {
			met = append(met, index)
		}
	}
	slices.Sort(m.nodeConditions)
	state := object{"observed": observed, "met": met, "conditions": append([]v1.NodeConditionType{}, m.nodeConditions...)}
	rejected := []string{}
	for name, pod := range admission {
		if result := m.Admit(&lifecycle.PodAdmitAttributes{Pod: pod}); !result.Admit {
			rejected = append(rejected, name)
			state["reject_message"] = result.Message
		}
	}
	slices.Sort(rejected)
	state["rejected"] = rejected
	return state
}

func trace(d dice) object {
	of, pods := d.settings(), d.pods(8)
	thresholds := of.thresholds()
	layout := pick(d, [2]bool{}, [2]bool{true, false}, [2]bool{true, true})
	transition := pick(d, 0, 30*time.Second, 5*time.Minute)
	most, isolated := pick[int64](d, 0, 10, 60, -1), !d.one(4)
	admission := map[string]*v1.Pod{"one": d.pod("one"), "other": d.pod("other")}
	steps, now := []*step{}, start
	for range 2 + d.IntN(6) {
		advance := pick(d, 10*time.Second, 20*time.Second, time.Minute, 299*time.Second)
		now = now.Add(advance)
		current := &step{Advance: advance, Active: []string{}}
		active := []*v1.Pod{}
		for _, pod := range pods {
			if !d.one(8) {
				active, current.Active = append(active, pod), append(current.Active, pod.Name)
			}
		}
		// Statistics may be those of the step before.
		if current.Stats = d.summary(active, now); d.one(6) && len(steps) > 0 {
			current.Stats = steps[len(steps)-1].Stats
		}
		if d.one(3) {
			current.After = d.summary(active, now)
		}
		steps = append(steps, current)
	}
	var manager *managerImpl
	for range runs {
		w := &world{dedicated: layout[0], split: layout[1]}
		clock := clocktesting.NewFakeClock(start)
		manager = &managerImpl{
			clock: clock, killPodFunc: w.kill, imageGC: w, containerGC: w, recorder: w, summaryProvider: w,
			config:                       Config{PressureTransitionPeriod: transition, MaxPodGracePeriodSeconds: most, Thresholds: slices.Clone(thresholds)},
			nodeRef:                      &v1.ObjectReference{Kind: "Node", Name: node},
			nodeConditionsLastObservedAt: nodeConditionsObservedAt{}, thresholdsFirstObservedAt: thresholdsObservedAt{},
			localStorageCapacityIsolation: isolated,
		}
		for _, current := range steps {
			*w = world{dedicated: w.dedicated, split: w.split, step: current}
			clock.Step(current.Advance)
			active := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return !slices.Contains(current.Active, pod.Name) })
			evicted, err := manager.synchronize(context.Background(), w, func() []*v1.Pod { return active })
			if err != nil {
				panic(err)
			}
			returned := []string{}
			for _, pod := range evicted {
				returned = append(returned, pod.Name)
			}
			text, _ := json.Marshal(object{
				"events": append([]object{}, w.events...), "kills": append([]object{}, w.kills...),
				"reclaim": append([]string{}, w.reclaimed...), "returned": returned, "stats_calls": w.calls,
			})
			is_known := slices.ContainsFunc(current.Outcomes, func(known json.RawMessage) bool { return string(known) == string(text) })
			if !is_known {
				current.Outcomes = append(current.Outcomes, text)
			}
			current.State = manager.state(admission)
		}
	}
	return object{
		"admission_pods": admission, "pods": pods, "steps": steps, "thresholds": listed(possible(manager.config.Thresholds)),
		"config": object{
			"enforce_node_allocatable": of.enforce, "eviction_hard": of.hard, "eviction_soft": of.soft,
			"eviction_soft_grace_period": of.grace, "eviction_minimum_reclaim": of.min_reclaim,
			"dedicated_image_fs": layout[0], "dedicated_container_fs": layout[1],
			"local_storage_capacity_isolation": isolated, "max_pod_grace_period_seconds": most,
			"pressure_transition_period_ns": transition.Nanoseconds(),
		},
	}
}
