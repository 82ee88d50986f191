// How the slots of a worker are split among the nodes, so that all together never use more than there are.
import type { Attempt } from './attempt.js';
import type { Session, Slots } from './session.js';

// Sends the credits that should change: what is free of each handler goes to where jobs wait first. A slot moves in two
// steps: while a smaller credit is not acknowledged, none grows.
export function moveSlots(
  live: Session[], limits: (readonly [handler: string, limit: number])[], busy: Attempt[], stopping: boolean,
): void {
  if (live.some((one) => one.ackedSequence < one.sequence)) return;
  const open = live.filter((one) => !one.retiring && !stopping);
  const targets = new Map(live.map((one) => [one, {} as Slots]));
  for (const [handler, limit] of limits) {
    const mine = busy.filter((one) => one.job.handler === handler);
    for (const [session, slots] of targets) {
      const used = mine.filter((one) => one.ours && one.session === session).length;
      slots[handler] = open.includes(session) ? used : 0;
    }
    const wanting = open.filter((one) => (one.demand[handler] ?? 0) > 0);
    const takers = wanting.length > 0 ? wanting : open;
    const turn = wanting.length > 0 ? Math.floor(Date.now() / 1000) : 0; // one slot for several nodes goes round
    // What came on a broken stream, and what was superseded and still runs, is in `mine` and counted by no node.
    for (let i = 0; takers.length > 0 && i < limit - mine.length; i++) {
      targets.get(takers[(turn + i) % takers.length]!)![handler]! += 1;
    }
  }
  const before = (session: Session, handler: string) => session.credit[handler] ?? 0;
  const shrinks = [...targets].some(([one, slots]) => Object.entries(slots).some(([name, n]) => n < before(one, name)));
  for (const [session, slots] of targets) {
    const next: Slots = {};
    for (const [name, count] of Object.entries(slots)) {
      next[name] = shrinks ? Math.min(count, before(session, name)) : count;
    }
    if (JSON.stringify(next) !== JSON.stringify(session.credit)) session.grant(next);
  }
}
