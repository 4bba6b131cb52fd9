# The benchmarks of benchmarks/gpu over the stand-in, with as little to do as there is: that they end and say what they
# should. Their figures mean nothing here.
function(ddp_try_benchmark name library says)
  set(program fake_gpu_${name}_benchmark)
  add_executable(${program} ${PROJECT_SOURCE_DIR}/benchmarks/gpu/${name}_benchmark.cpp place.cpp)
  target_link_libraries(${program} PRIVATE project_options nlohmann_json::nlohmann_json ${library})
  target_compile_options(${program} PRIVATE -O0)  # compiles in half the time
  ddp_use_fake_gpu(${program})
  add_dependencies(${program} ddprun)
  add_test(NAME ${program} COMMAND ${program} ${ARGN})
  set_tests_properties(${program} PROPERTIES LABELS integration TIMEOUT 120 PASS_REGULAR_EXPRESSION "${says}"
                       ENVIRONMENT DDP_FLIGHT_RECORDER=/dev/null)
endfunction()

ddp_try_benchmark(rebuild ddp_inside_fake_gpu "next group's first finished all-reduce, median"
                  --rounds=2 --elements=100)
ddp_try_benchmark(recovery ddp_inside_fake_gpu "kept process and GPU memory . 2 of 2 " --kills=2 --elements=100)
ddp_try_benchmark(gradient_kernels ddp_inside_fake_gpu "clip by the norm, bfloat16, 1 MiB" --mib=1 --rounds=2)
ddp_try_benchmark(latency ddp_inside_fake_gpu "barrier, 2 ranks on one GPU" --calls=3 --rounds=2 --buckets=3)
if(TARGET fake_train_mlp_cuda_parts)
  ddp_try_benchmark(engine_overhead fake_train_mlp_cuda_parts
                    "calls in 6 of its steps that make the host wait for the device . 0 "
                    --layers=2 --width=16 --batch-size=4 --steps=3 --rounds=2)
  ddp_try_benchmark(overlap fake_train_mlp_cuda_parts "rank 1: of that with an all-reduce in flight"
                    --layers=3 --width=520 --batch-size=2)
endif()
