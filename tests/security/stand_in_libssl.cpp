// What is called libssl.so.3 and is OpenSSL 1.1.1.
extern "C" [[gnu::visibility("default")]] unsigned long OpenSSL_version_num() { return 0x1010117fL; }
