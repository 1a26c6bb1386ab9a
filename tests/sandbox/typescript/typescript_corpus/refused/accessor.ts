// ! UNSUPPORTED_FEATURE 4
class A {
  plain = 1
  static accessor counted = 1
}
