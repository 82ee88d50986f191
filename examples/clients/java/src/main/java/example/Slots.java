package example;

import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** How the slots of a worker are split among the nodes, so that all together never use more than there are. */
final class Slots {
  private Slots() {}

  /**
   * Sends the credits that should change: what is free of each handler goes to where jobs wait first. A slot moves in
   * two steps: while a smaller credit is not acknowledged, none grows.
   */
  static void move(
      Collection<Session> live, Map<String, Integer> limits, List<Attempt> busy, boolean stopping) {
    if (live.stream().anyMatch(one -> one.acknowledged < one.sequence)) {
      return;
    }
    List<Session> open = live.stream().filter(one -> !one.retiring() && !stopping).toList();
    Map<Session, Map<String, Integer>> targets = new LinkedHashMap<>();
    live.forEach(one -> targets.put(one, new TreeMap<>()));
    limits.forEach((name, limit) -> {
      List<Attempt> mine = busy.stream().filter(one -> one.job.getHandler().equals(name)).toList();
      targets.forEach((session, slots) -> {
        long used = mine.stream().filter(one -> one.ours && one.session == session).count();
        slots.put(name, open.contains(session) ? (int) used : 0);
      });
      List<Session> wanting = open.stream().filter(one -> one.demand.getOrDefault(name, 0) > 0).toList();
      List<Session> takers = wanting.isEmpty() ? open : wanting;
      // One slot for several nodes goes round.
      int turn = wanting.isEmpty() ? 0 : (int) (System.currentTimeMillis() / 1000);
      // What came on a broken stream, and what was superseded and still runs, is in `mine` and counted by no node.
      for (int i = 0; !takers.isEmpty() && i < limit - mine.size(); i++) {
        targets.get(takers.get((turn + i) % takers.size())).merge(name, 1, Integer::sum);
      }
    });
    boolean shrinks = targets.entrySet().stream().anyMatch(entry -> entry.getValue().entrySet().stream()
        .anyMatch(slots -> slots.getValue() < entry.getKey().credit.getOrDefault(slots.getKey(), 0)));
    targets.forEach((session, slots) -> {
      if (shrinks) {
        slots.replaceAll((name, count) -> Math.min(count, session.credit.getOrDefault(name, 0)));
      }
      if (!slots.equals(session.credit)) {
        session.grant(new HashMap<>(slots));
      }
    });
  }
}
