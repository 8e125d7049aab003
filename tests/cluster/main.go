// Command kube is every program of Kubernetes that a test cluster needs, in one file: the name that it is called by, or
// its first argument, selects the program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/cmd"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// As the programs themselves do: log as JSON, metrics of clients, the version as a metric.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// The exit code for a command line that selects no program, as in sysexits.h.
const usage = 64

// programs has each program but etcd, which is no command of cobra.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubeadm":                 func() *cobra.Command { return kubeadm.NewKubeadmCommand(os.Stdin, os.Stdout, os.Stderr) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := programs[name]; !known && name != "etcd" && len(os.Args) > 1 {
		name, os.Args = os.Args[1], os.Args[1:]
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%q is none of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubeadm, kubectl, kubelet\n", name)
		os.Exit(usage)
	}
	os.Exit(cli.Run(program()))
}
