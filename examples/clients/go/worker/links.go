package main

import (
	"log"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/shardwheel-clients/cluster"
)

// links keeps a session to every node. Its fields are guarded by the worker's mutex.
type links struct {
	live         map[string]*session // by node
	members      map[string]string   // address by node
	dialling     map[string]bool     // nodes, and "" for whatever node is behind a seed
	seed         int
	everWelcomed bool
	closed       bool
	hello        sync.Mutex // one hello at a time, never held together with the worker's mutex
}

// setMembers takes in what a node says of who is there. It may have lost touch with the others, so what they say of it
// counts.
func (l *links) setMembers(of *session, told map[string]string) {
	of.told = told
	named, itself, aware := map[string]string{}, map[string]string{}, 0
	for _, one := range l.live {
		maps.Copy(itself, one.told)
		others := maps.Clone(one.told)
		delete(others, one.node)
		maps.Copy(named, others)
		if len(others) > 0 {
			aware++
		}
	}
	if aware < 2 {
		maps.Copy(named, itself)
	}
	l.members = named
	for _, one := range l.live {
		_, member := named[one.node]
		one.left = len(named) > 0 && !member
	}
}

// dial connects to the members without a session, and to a seed while there is no session at all: so the cluster is
// found again after all its addresses have changed. The caller holds the mutex.
func (w *worker) dial() {
	if w.links.closed {
		return
	}
	targets := maps.Clone(w.links.members)
	if len(w.links.live) == 0 {
		targets[""] = cluster.Addresses[w.links.seed%len(cluster.Addresses)]
		w.links.seed++
	}
	for node, address := range targets {
		if w.links.live[node] == nil && !w.links.dialling[node] {
			w.links.dialling[node] = true
			go w.keep(node, address)
		}
	}
}

func (w *worker) keep(node, address string) {
	if err := w.converse(node, address); err != nil {
		log.Printf("no session with %s: %v", address, err)
		w.mu.Lock()
		refused := status.Code(err) == codes.InvalidArgument && !w.links.everWelcomed
		w.mu.Unlock()
		if refused {
			log.Fatal("the cluster refuses this worker")
		}
	}
	time.Sleep(100*time.Millisecond + rand.N(400*time.Millisecond))
	w.mu.Lock()
	delete(w.links.dialling, node)
	w.mu.Unlock()
}
