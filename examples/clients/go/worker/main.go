// Runs jobs until SIGTERM. SHARDWHEEL_GRACE is the time in seconds that running jobs then have.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

var handlers = map[string]handler{
	"example.echo": {4, func(_ context.Context, payload []byte) ([]byte, error) { return payload, nil }},
	"example.fail": {4, func(context.Context, []byte) ([]byte, error) { return nil, errors.New("as asked") }},
	"example.sleep": {4, func(ctx context.Context, payload []byte) ([]byte, error) {
		seconds, err := strconv.ParseFloat(string(payload), 64)
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return []byte(`"slept"`), nil
		}
	}},
}

func main() {
	host, _ := os.Hostname()
	grace, err := strconv.ParseFloat(cmp.Or(os.Getenv("SHARDWHEEL_GRACE"), "30"), 64)
	if err != nil {
		log.Fatalf("SHARDWHEEL_GRACE: %v", err)
	}
	w := newWorker(cmp.Or(os.Getenv("SHARDWHEEL_WORKER"), fmt.Sprintf("%s-%d", host, os.Getpid())), handlers)
	running, stopped := context.WithCancel(context.Background())
	defer stopped()
	go w.serve(running)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	go func() {
		<-signals
		os.Exit(130)
	}()
	w.drain(running, time.Duration(grace*float64(time.Second)))
}
