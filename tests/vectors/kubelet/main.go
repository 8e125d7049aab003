// Command vectors writes decisions of the kubelet's own eviction code as files that `cargo xtask vectors` reads.
package main

import (
	"flag"
	"fmt"
	"os"

	"plimsoll/vectors/eviction"
)

func main() {
	cases := flag.Int("cases", 100, "number of cases in each file")
	seed := flag.Uint64("seed", 1, "seed of the random numbers")
	directory := flag.String("directory", ".", "where to write the files")
	flag.Parse()
	if err := eviction.Generate(*directory, *cases, *seed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
