#include "ir/sharding/contents.h"

#include <algorithm>
#include <numeric>

namespace rannc::ir::sharding {

ContentId Contents::fresh(int64_t size) {
  const auto id = static_cast<ContentId>(entries_.size());
  entries_.push_back({.size = size, .parent = id, .form = Form::factor, .parts = {}});
  return id;
}

ContentId Contents::joined(const std::vector<ContentId>& parts, Form form) {
  const int64_t neutral = form == Form::product ? 1 : 0;
  std::vector<ContentId> kept;
  for (const ContentId part : parts) {
    if (size(part) != neutral) kept.push_back(find(part));
  }
  if (kept.empty()) return fresh(neutral);
  if (kept.size() == 1) return kept.front();
  int64_t total = neutral;
  for (const ContentId part : kept) {
    total = form == Form::product ? total * size(part) : total + size(part);
  }
  const ContentId id = fresh(total);
  entries_[id].form = form;
  entries_[id].parts = std::move(kept);
  return id;
}

ContentId Contents::product(const std::vector<ContentId>& parts) {
  return joined(parts, Form::product);
}
ContentId Contents::sum(const std::vector<ContentId>& parts) { return joined(parts, Form::sum); }

ContentId Contents::find(ContentId id) const {
  while (entries_[id].parent != id) id = entries_[id].parent;
  return id;
}

std::vector<ContentId> Contents::parts(ContentId id) const {
  std::vector<ContentId> found;
  for (const ContentId part : entries_[find(id)].parts) found.push_back(find(part));
  return found;
}

std::vector<ContentId> Contents::flat(ContentId id, Form form_) const {
  const ContentId root = find(id);
  if (entries_[root].form != form_) return {root};
  std::vector<ContentId> found;
  for (const ContentId part : entries_[root].parts) {
    for (const ContentId inner : flat(part, form_)) found.push_back(inner);
  }
  return found;
}

bool Contents::contains(ContentId id, ContentId part) const {
  const ContentId root = find(id);
  return root == find(part) || std::ranges::any_of(entries_[root].parts, [&](ContentId inner) {
           return contains(inner, part);
         });
}

std::vector<ContentId> Contents::factors(ContentId id) const {
  const ContentId root = find(id);
  if (entries_[root].form == Form::factor) return {root};
  std::vector<ContentId> found;
  for (const ContentId part : entries_[root].parts) {
    for (const ContentId inner : factors(part)) found.push_back(inner);
  }
  return found;
}

std::vector<ContentId> Contents::torn() const {
  std::vector<ContentId> found;
  for (ContentId id = 0; id < entries_.size(); ++id) {
    if (entries_[id].parent != id || !entries_[id].torn) continue;
    for (const ContentId factor : factors(id)) found.push_back(factor);
  }
  return found;
}

Contents::Halves Contents::split(ContentId id, int64_t at) {
  const ContentId root = find(id);
  const int64_t whole = size(root);
  if (at <= 0 || at >= whole) return std::nullopt;
  std::pair<ContentId, ContentId> halves;
  if (form(root) == Form::factor) {
    halves = {fresh(at), fresh(whole - at)};
  } else if (form(root) == Form::product) {
    const std::vector<ContentId> all = flat(root, Form::product);
    const std::vector<ContentId> fast(all.begin() + 1, all.end());
    const int64_t inner = whole / size(all.front());
    if (at % inner != 0) return std::nullopt;
    const Halves slow = split(all.front(), at / inner);
    if (!slow) return std::nullopt;
    const auto with_fast = [&](ContentId part) {
      std::vector<ContentId> list{part};
      list.insert(list.end(), fast.begin(), fast.end());
      return product(list);
    };
    halves = {with_fast(slow->first), with_fast(slow->second)};
  } else {
    std::vector<ContentId> before;
    std::vector<ContentId> behind;
    int64_t begin = 0;
    for (const ContentId part : flat(root, Form::sum)) {
      const int64_t end = begin + size(part);
      if (end <= at) {
        before.push_back(part);
      } else if (begin >= at) {
        behind.push_back(part);
      } else {
        const Halves cut = split(part, at - begin);
        if (!cut) return std::nullopt;
        before.push_back(cut->first);
        behind.push_back(cut->second);
      }
      begin = end;
    }
    halves = {sum(before), sum(behind)};
  }
  entries_[root].form = Form::sum;
  entries_[root].parts = {halves.first, halves.second};
  return halves;
}

Contents::Halves Contents::refine(ContentId id, int64_t slow) {
  const ContentId root = find(id);
  const int64_t whole = size(root);
  if (slow <= 1 || slow >= whole || whole % slow != 0) return std::nullopt;
  const int64_t fast = whole / slow;
  std::pair<ContentId, ContentId> halves;
  if (form(root) == Form::factor) {
    halves = {fresh(slow), fresh(fast)};
  } else if (form(root) == Form::product) {
    std::vector<ContentId> before;
    std::vector<ContentId> behind;
    int64_t seen = 1;
    for (const ContentId part : flat(root, Form::product)) {
      if (seen == slow) {
        behind.push_back(part);
      } else if (slow % (seen * size(part)) == 0) {
        before.push_back(part);
        seen *= size(part);
      } else {
        if (slow % seen != 0) return std::nullopt;
        const Halves cut = refine(part, slow / seen);
        if (!cut) return std::nullopt;
        before.push_back(cut->first);
        behind.push_back(cut->second);
        seen = slow;
      }
    }
    halves = {product(before), product(behind)};
  } else {
    std::vector<ContentId> heads;
    const ContentId tail = fresh(fast);
    const std::vector<ContentId> all = flat(root, Form::sum);
    if (std::ranges::any_of(all, [&](ContentId part) { return size(part) % fast != 0; })) {
      return std::nullopt;
    }
    for (const ContentId part : all) {
      if (size(part) == fast) {
        heads.push_back(fresh(1));
        unify(part, tail);
        continue;
      }
      const Halves cut = refine(part, size(part) / fast);
      if (!cut) return std::nullopt;
      heads.push_back(cut->first);
      unify(cut->second, tail);
    }
    halves = {sum(heads), tail};
  }
  if (find(root) != root) return halves;  // a part has become the whole
  entries_[root].form = Form::product;
  entries_[root].parts = {halves.first, halves.second};
  return halves;
}

bool Contents::unify_products(ContentId a, ContentId b) {
  const std::vector<ContentId> left = flat(a, Form::product);
  const std::vector<ContentId> right = flat(b, Form::product);
  const Agreed agreed = align(left, right);
  return agreed.a == left.size() && agreed.b == right.size();
}

bool Contents::unify_sums(ContentId a, ContentId b) {
  std::vector<ContentId> left = flat(a, Form::sum);
  std::vector<ContentId> right = flat(b, Form::sum);
  size_t i = 0;
  size_t j = 0;
  while (i < left.size() && j < right.size()) {
    const int64_t least = std::min(size(left[i]), size(right[j]));
    const auto cut = [&](std::vector<ContentId>& list, size_t at) {
      if (size(list[at]) == least) return true;
      const Halves halves = split(list[at], least);
      if (!halves) return false;
      list[at] = halves->first;
      list.insert(list.begin() + static_cast<int64_t>(at) + 1, halves->second);
      return true;
    };
    if (!cut(left, i) || !cut(right, j)) return false;
    unify(left[i++], right[j++]);
  }
  return true;
}

void Contents::unify(ContentId a, ContentId b) {
  a = find(a);
  b = find(b);
  if (a == b) return;
  bool agree = size(a) == size(b);
  if (agree && form(a) != Form::factor && form(b) != Form::factor) {
    const bool sums = form(a) == Form::sum || form(b) == Form::sum;
    agree = sums ? unify_sums(a, b) : unify_products(a, b);
    a = find(a);
    b = find(b);
    if (a == b) return;
  }
  if (!agree) {
    entries_[a].torn = entries_[b].torn = true;
    return;
  }
  // The one that is taken apart stays; of two factors the older, so that names do not change.
  const bool keep_a = form(b) == Form::factor && (form(a) != Form::factor || a < b);
  if (!keep_a) std::swap(a, b);
  entries_[b].parent = a;
  entries_[a].torn = entries_[a].torn || entries_[b].torn;
}

Contents::Agreed Contents::align(std::vector<ContentId> a, std::vector<ContentId> b) {
  Agreed agreed;  // counted in whole dimensions of the lists as they were given
  size_t i = 0;
  size_t j = 0;
  while (true) {
    while (i < a.size() && size(a[i]) == 1) agreed.a = ++i;
    while (j < b.size() && size(b[j]) == 1) agreed.b = ++j;
    if (i == a.size() || j == b.size()) return agreed;
    const int64_t left = size(a[i]);
    const int64_t right = size(b[j]);
    if (left == right) {
      unify(a[i], b[j]);
      agreed = {++i, ++j};
      continue;
    }
    std::vector<ContentId>& longer = left > right ? a : b;
    const size_t at = left > right ? i : j;
    const Halves halves = refine(longer[at], std::min(left, right));
    if (!halves) return agreed;
    unify(halves->first, left > right ? b[j] : a[i]);
    longer[at] = halves->second;
    (left > right ? j : i) += 1;
  }
}

}  // namespace rannc::ir::sharding
