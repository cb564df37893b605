package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/file"
)

func main() {
	if len(os.Args) > 2 {
		id := os.Args[2]
		c, err := holdfast.Open(context.Background(), os.Args[1], nil)
		if err != nil {
			panic(err)
		}
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
		w := bufio.NewWriterSize(os.Stdout, 1<<20)
		end := time.Now().Add(2 * time.Second)
		for time.Now().Before(end) {
			l, err := c.Mutex("m", &holdfast.LockOptions{Fair: os.Getenv("FAIR") != ""}).Lock(context.Background())
			if err != nil {
				panic(err)
			}
			fmt.Fprintln(w, time.Now().UnixNano(), id)
			if h, err := time.ParseDuration(os.Getenv("HOLD")); err == nil {
				time.Sleep(h)
			}
			fmt.Fprintln(w, -time.Now().UnixNano(), id)
			l.Release()
		}
		w.Flush()
		c.Close()
		return
	}
	type rec struct {
		t  int64
		id int
		end int64
	}
	var all []rec
	url := os.Args[1]
	var cmds []*exec.Cmd
	var rs []*bufio.Reader
	for i := 0; i < 8; i++ {
		cmd := exec.Command(os.Args[0], url, strconv.Itoa(i))
		cmd.Stderr = os.Stderr
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		r := bufio.NewReader(out)
		r.ReadString('\n')
		cmds, rs = append(cmds, cmd), append(rs, r)
		defer in.Close()
		defer cmd.Wait()
		go func() { time.Sleep(time.Second); in.Write([]byte("\n")) }()
	}
	done := make(chan []rec)
	for _, r := range rs {
		go func() {
			var part []rec
			for {
				l, err := r.ReadString('\n')
				if err != nil {
					break
				}
				f := strings.Fields(l)
				t, _ := strconv.ParseInt(f[0], 10, 64)
				id, _ := strconv.Atoi(f[1])
				if t < 0 {
					part[len(part)-1].end = -t
					continue
				}
				part = append(part, rec{t, id, 0})
			}
			done <- part
		}()
	}
	for range rs {
		all = append(all, <-done...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].t < all[j].t })
	counts := make([]int, 8)
	var runs []string
	n, from := 0, 0
	for i, r := range all {
		counts[r.id]++
		n++
		if i+1 == len(all) || all[i+1].id != r.id {
			runs = append(runs, fmt.Sprintf("%d:%d/%.1fms", r.id, n, float64(r.t-all[from].t)/1e6))
			if i+1 < len(all) {
				runs = append(runs, fmt.Sprintf("-%.1f-", float64(all[i+1].t-r.end)/1e6))
if all[i+1].t-r.end > 20e6 { fmt.Println("GAP", float64(r.t-all[0].t)/1e6, float64(all[i+1].t-r.end)/1e6, r.id, all[i+1].id) }
			}
			n, from = 0, i+1
		}
	}
	fmt.Println(len(all), counts, len(runs)/2)
	k := len(runs)
	fmt.Println(strings.Join(runs[:k], " "))
}
