package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pb "example.com/shardwheel-clients/gen/shardwheel/v1"
)

// moveSlots sends the credits that should change: what is free of each handler goes to where jobs wait first. A slot
// moves in two steps: while a smaller credit is not acknowledged, none grows.
func (w *worker) moveSlots() {
	live := slices.SortedFunc(maps.Values(w.links.live), func(a, b *session) int { return cmp.Compare(a.node, b.node) })
	if slices.ContainsFunc(live, func(s *session) bool { return s.acked < s.sequence }) {
		return
	}
	targets := map[*session]map[string]int32{}
	for _, one := range live {
		targets[one] = map[string]int32{}
	}
	busy := w.busy()
	for name, handler := range w.handlers {
		// What came on a broken stream, and what was superseded and still runs, is in use and counted by no node.
		free := handler.maxConcurrency
		for _, one := range busy {
			if one.job.Handler == name {
				free--
				if target := targets[one.session]; one.ours && target != nil && !one.session.retiring() && !w.stopping {
					target[name]++
				}
			}
		}
		var open, wanting []*session
		for _, one := range live {
			targets[one][name] += 0 // every handler is in every credit
			if !one.retiring() && !w.stopping {
				open = append(open, one)
				if one.demand[name] > 0 {
					wanting = append(wanting, one)
				}
			}
		}
		takers, turn := open, 0
		if len(wanting) > 0 {
			takers, turn = wanting, int(time.Now().Unix()) // one slot for several nodes goes round
		}
		for ; free > 0 && len(takers) > 0; free-- {
			targets[takers[turn%len(takers)]][name]++
			turn++
		}
	}
	shrinks := false
	for _, one := range live {
		for name, slots := range targets[one] {
			shrinks = shrinks || slots < one.credit[name]
		}
	}
	for _, one := range live {
		for name, slots := range targets[one] {
			if shrinks {
				targets[one][name] = min(slots, one.credit[name])
			}
		}
		if !maps.Equal(targets[one], one.credit) {
			one.grant(targets[one])
		}
	}
}

func (s *session) grant(credit map[string]int32) {
	s.credit = credit
	s.sequence++
	message := &pb.Credit{Sequence: s.sequence}
	for name, slots := range credit {
		message.Credits = append(message.Credits, &pb.HandlerCredit{Handler: name, Slots: slots})
	}
	s.send(&pb.SessionRequest{Message: &pb.SessionRequest_Credit{Credit: message}})
}
