// = [1, 2, "p", 6]
class Point {
  total: number
  constructor(private x: number, readonly y = 2, protected readonly label?: string, public override z?: number) {
    this.total = x + y + 3
  }
  all() { return [this.x, this.y, this.label, this.total] }
}
new Point(1, undefined, "p").all()
