// Scaled dot-product attention: CUDA's flash and memory-efficient kernels, by the CPU's flash kernel.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

#include "operators.h"

namespace emu {
namespace {

using Scale = std::optional<double>;
using Mask = std::optional<Tensor>;

// at::SDPBackend: math, flash, efficient. The choice that PyTorch makes on an A100, without cuDNN's.
int64_t choose(const Tensor &query, const Tensor &, const Tensor &, const Mask &mask, double, bool, Scale, bool) {
  constexpr int64_t MATH = 0, FLASH = 1, EFFICIENT = 2;
  if (query.scalar_type() == at::kDouble) return MATH;
  return is_narrow(query) && !mask ? FLASH : EFFICIENT;
}

// [batch, heads, sequence, features] as CUDA's kernels leave it: sequence before heads in memory.
Tensor laid_out(const Tensor &tensor) { return tensor.transpose(1, 2).contiguous().transpose(1, 2); }

std::pair<Tensor, Tensor> forward(const char *kernel, const Tensor &query, const Tensor &key, const Tensor &value,
                                  double dropout, bool causal, const Mask &mask, Scale scale) {
  Tensor q = on_cpu(query), k = on_cpu(key), v = on_cpu(value);
  Mask m = on_cpu(mask);
  auto made = compute_on_cpu(kernel, query.get_device(), [=]() -> std::vector<Tensor> {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, m, scale);
    return {laid_out(output), logsumexp.contiguous()};
  });
  return {made[0], made[1]};
}

std::vector<Tensor> backward(const char *kernel, const Tensor &gradient, const Tensor &query, const Tensor &key,
                             const Tensor &value, const Tensor &output, const Tensor &logsumexp, double dropout,
                             bool causal, const Mask &mask, Scale scale) {
  Tensor g = on_cpu(gradient), q = on_cpu(query), k = on_cpu(key), v = on_cpu(value);
  Tensor o = on_cpu(output), l = on_cpu(logsumexp);
  Mask m = on_cpu(mask);
  return compute_on_cpu(kernel, query.get_device(), [=]() -> std::vector<Tensor> {
    auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, l, dropout, causal, m, scale);
    return {laid_out(dq), laid_out(dk), laid_out(dv)};
  });
}

// A place for the state of the random numbers, which the CPU's kernel does not use.
Tensor random_state(const Tensor &like) { return at::empty({}, like.options().dtype(at::kLong)); }

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
flash(const Tensor &query, const Tensor &key, const Tensor &value, double dropout, bool causal, bool, Scale scale) {
  auto [output, logsumexp] = forward("flash_fwd_kernel", query, key, value, dropout, causal, std::nullopt, scale);
  return {output,
          logsumexp,
          Tensor(),
          Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          random_state(query),
          random_state(query),
          at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor &gradient, const Tensor &query, const Tensor &key,
                                                  const Tensor &value, const Tensor &output, const Tensor &logsumexp,
                                                  const Tensor &, const Tensor &, c10::SymInt, c10::SymInt,
                                                  double dropout, bool causal, const Tensor &, const Tensor &,
                                                  Scale scale) {
  auto made = backward("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", gradient, query, key, value, output, logsumexp,
                       dropout, causal, std::nullopt, scale);
  return {made[0], made[1], made[2]};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor &query, const Tensor &key, const Tensor &value,
                                                     const Mask &mask, bool, double dropout, bool causal, Scale scale) {
  auto [output, logsumexp] = forward("fmha_cutlassF", query, key, value, dropout, causal, mask, scale);
  return {output, logsumexp, random_state(query), random_state(query)};
}

// No gradient of the mask.
std::tuple<Tensor, Tensor, Tensor, Tensor>
efficient_backward(const Tensor &gradient, const Tensor &query, const Tensor &key, const Tensor &value,
                   const Tensor &mask, const Tensor &output, const Tensor &logsumexp, const Tensor &, const Tensor &,
                   double dropout, std::array<bool, 4> wanted, bool causal, Scale scale) {
  TORCH_CHECK(!(wanted[3] && mask.defined() && mask.requires_grad()), "emulated GPU: no gradient of an attention mask");
  Mask stated = mask.defined() ? Mask(mask) : std::nullopt;
  auto made = backward("fmha_cutlassB", gradient, query, key, value, output, logsumexp, dropout, causal, stated, scale);
  return {made[0], made[1], made[2], Tensor()};
}

} // namespace

void register_attention(torch::Library &library) {
  library.impl("_fused_sdp_choice", choose);
  library.impl("_scaled_dot_product_flash_attention", flash);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  library.impl("_scaled_dot_product_efficient_attention", efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
}

} // namespace emu
