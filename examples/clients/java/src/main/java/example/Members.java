package example;

import java.util.Collection;
import java.util.HashMap;
import java.util.Map;

/** Who belongs to the cluster, from what the nodes say. */
final class Members {
  private Members() {}

  /** Address by node. A node may have lost touch with the others: so it is there if another one says so. */
  static Map<String, String> of(Collection<Session> live) {
    Map<String, String> named = new HashMap<>();
    Map<String, String> all = new HashMap<>();
    int aware = 0;
    for (Session one : live) {
      Map<String, String> others = new HashMap<>(one.told);
      all.putAll(others);
      others.remove(one.node);
      named.putAll(others);
      aware += others.isEmpty() ? 0 : 1;
    }
    if (aware < 2) {
      named.putAll(all); // one that knows no other has perhaps just started
    }
    return named;
  }
}
