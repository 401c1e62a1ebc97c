// Elementary functions over lanes, each within a few units in the last place, with the same bits in
// every lane position. L is one of the *Lanes of this folder.
#pragma once

namespace triax::sequence {
namespace {

/// n lanes, 1 <= n <= kWidth, of memory that may end there.
template <typename L>
typename L::Reg load_some(const float* p, int n) {
  return n == L::kWidth ? L::load(p) : L::load_n(p, n);
}

template <typename L>
void store_some(float* p, typename L::Reg x, int n) {
  n == L::kWidth ? L::store(p, x) : L::store_n(p, x, n);
}

/// e^x; 0 below -104, infinity above 89, NaN stays NaN.
template <typename L>
typename L::Reg lanes_exp(typename L::Reg x) {
  x = L::clamp(x, -104.0f, 89.0f);
  const auto n = L::round(L::mul(x, L::set(1.44269504f)));
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  auto r = L::fnma(n, L::set(0.693359375f), x);
  r = L::fnma(n, L::set(-2.12194440e-4f), r);
  auto p = L::fma(L::set(1.9875691500e-4f), r, L::set(1.3981999507e-3f));
  p = L::fma(p, r, L::set(8.3334519073e-3f));
  p = L::fma(p, r, L::set(4.1665795894e-2f));
  p = L::fma(p, r, L::set(1.6666665459e-1f));
  p = L::fma(p, r, L::set(5.0000001201e-1f));
  p = L::fma(p, L::mul(r, r), r);
  return L::scale(L::add(p, L::set(1.0f)), n);
}

/// 1 / (1 + e^-x), accurate on both sides: only e^-|x| is formed.
template <typename L>
typename L::Reg lanes_sigmoid(typename L::Reg x) {
  const auto e = lanes_exp<L>(L::sub(L::zero(), L::abs(x)));
  return L::div(L::if_positive(x, L::set(1.0f), e), L::add(L::set(1.0f), e));
}

/// x / (1 + e^-x)
template <typename L>
typename L::Reg lanes_silu(typename L::Reg x) {
  const auto e = lanes_exp<L>(L::sub(L::zero(), L::abs(x)));
  return L::div(L::if_positive(x, x, L::mul(x, e)), L::add(L::set(1.0f), e));
}

/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|); log1p(e) = 2 atanh(s), s = e / (2 + e) <= 1/3.
template <typename L>
typename L::Reg lanes_softplus(typename L::Reg x) {
  const auto e = lanes_exp<L>(L::sub(L::zero(), L::abs(x)));
  const auto s = L::div(e, L::add(L::set(2.0f), e));
  const auto w = L::mul(s, s);
  auto p = L::set(1.0f / 17.0f);
  p = L::fma(p, w, L::set(1.0f / 15.0f));
  p = L::fma(p, w, L::set(1.0f / 13.0f));
  p = L::fma(p, w, L::set(1.0f / 11.0f));
  p = L::fma(p, w, L::set(1.0f / 9.0f));
  p = L::fma(p, w, L::set(1.0f / 7.0f));
  p = L::fma(p, w, L::set(1.0f / 5.0f));
  p = L::fma(p, w, L::set(1.0f / 3.0f));
  p = L::fma(p, w, L::set(1.0f));
  return L::fma(L::add(s, s), p, L::if_positive(x, x, L::zero()));
}

}  // namespace
}  // namespace triax::sequence
