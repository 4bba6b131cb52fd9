# One archive with all that tests/gpu/check.sh runs on a machine with a GPU: programs, libddp, the example's data.
# It is made by
#   cmake --workflow --preset gpu-bundle
# Of that machine it needs the driver, NCCL, cuBLAS, glibc 2.36 and libgcc_s: the C++ library is linked statically, but
# where program and libddp.so each had an unwinder of their own, an exception that passes from one to the other would
# end the process.

set(DDP_GPU_BUNDLE_PROGRAMS ddprun ddp-rendezvous train_mlp_cuda gpu_info gpu_probe gpu_elastic_worker)
foreach(name capture collectives init failure step memory elastic kernels device_mlp gradient_kernels)
  list(APPEND DDP_GPU_BUNDLE_PROGRAMS gpu_${name}_test)
endforeach()
foreach(name engine_overhead gradient_kernels latency overlap rebuild recovery)
  list(APPEND DDP_GPU_BUNDLE_PROGRAMS gpu_${name}_benchmark)
endforeach()
foreach(program ${DDP_GPU_BUNDLE_PROGRAMS})
  if(NOT TARGET ${program})
    message(FATAL_ERROR "the bundle for GPUs has no ${program}: it takes the CUDA toolkit with nvcc and cuBLAS, "
                        "tests, examples and benchmarks")
  endif()
endforeach()

add_custom_target(gpu_bundle DEPENDS ${DDP_GPU_BUNDLE_PROGRAMS} ddp)  # what the preset builds
set_target_properties(${DDP_GPU_BUNDLE_PROGRAMS} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
execute_process(COMMAND git describe --always --dirty WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(WRITE ${PROJECT_BINARY_DIR}/VERSION "${PROJECT_VERSION} ${commit}\n")

install(TARGETS ${DDP_GPU_BUNDLE_PROGRAMS} RUNTIME DESTINATION bin COMPONENT gpu_bundle)
install(TARGETS ddp LIBRARY DESTINATION lib NAMELINK_SKIP COMPONENT gpu_bundle)
install(PROGRAMS tests/gpu/check.sh DESTINATION . COMPONENT gpu_bundle)
install(FILES ${PROJECT_BINARY_DIR}/VERSION DESTINATION . COMPONENT gpu_bundle)
install(PROGRAMS tests/gpu/example.sh DESTINATION bin COMPONENT gpu_bundle)
install(FILES benchmarks/gpu/torch_ddp.py tests/gpu/torch_ranks.py DESTINATION bin COMPONENT gpu_bundle)
install(FILES examples/data/breast_cancer.csv DESTINATION data COMPONENT gpu_bundle)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME ddprun-${PROJECT_VERSION}-gpu-bundle)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL gpu_bundle)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_STRIP_FILES ON)
include(CPack)
